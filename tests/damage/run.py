"""Kills, damaged files and failing system calls, at random places, against what must hold.

``python tests/damage/run.py kills damages calls --count N --seed S``, or some of these kinds, prints what came of them,
and every fault with the number that repeats it (``--only NUMBER``).
"""

from __future__ import annotations

import argparse
import atexit
import errno
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "plugin")]

from palmette import FakeEncoder, Index, PalmetteError, TreeModel, load_model
from palmette.store.local.backend import LocalBackend
from support import tiny
from support.forks import ended, forked
from support.stores import SPECS, arrays_of, delete, doc, fast_place, put, state_of
from support.syscalls import KILL, READS, SHORT, TORN, watch

PAGE = 4096


One = Callable[[int, random.Random], tuple[str, str]]
"""Does one of a kind, given its number, in the folder ``work``; returns what came of it, and the fault, if any."""


# -- what is done -------------------------------------------------------------------------------------------


def change(backend: LocalBackend) -> None:
    """Several steps that must become one: delete, replace, add, and a merge of small segments."""
    with backend.write() as writer:
        writer.delete(["d1", "d7"])
        changed = [doc(f"d{i}", f"other text {i}", lang="de") for i in range(2, 6)]
        for some in (changed, [doc("x1"), doc("x2")]):
            writer.put(some, arrays_of(some))


STEPS: tuple[Callable[[LocalBackend], object], ...] = (
    lambda backend: put(backend, *(doc(f"new{i}", lang="en") for i in range(8))),
    change,
    lambda backend: delete(backend, "e0", "x1"),
    LocalBackend.compact,
    lambda backend: put(backend, doc("long", "some words " * 3000), doc("d2", "again")),
)


def make_store(folder: Path) -> None:
    """An index of two segments with deleted rows."""
    with LocalBackend.create(folder, SPECS, fingerprint="model") as backend:
        put(backend, *(doc(f"d{i}", lang="en", n=i) for i in range(12)))
        put(backend, *(doc(f"e{i}", lang="de", n=i) for i in range(3)))
        delete(backend, "d3")


def play(home: Path) -> list[Any]:
    """Leave the store in folders 0, 1 and so on, each a step later; returns its states."""
    make_store(home / "0")
    with LocalBackend.open(home / "0") as backend:
        states: list[Any] = [state_of(backend)]
    for n, step in enumerate(STEPS):
        shutil.copytree(home / str(n), home / str(n + 1))
        with LocalBackend.open(home / str(n + 1)) as backend:
            step(backend)
            states.append(state_of(backend))
    return states


def check_store(folder: Path, possible: Iterable[object]) -> str:
    """What is wrong with an index that should be in one of these states, and writable."""
    try:
        with LocalBackend.open(folder, verify="full") as backend:
            state = state_of(backend)
            if state not in list(possible):
                return f"neither before nor after: {sorted(state)}"
            put(backend, doc("next"))
            backend.verify()
            if {document.key for document in backend.scan()} != {*state, "next"}:
                return "the next write went wrong"
            if len(list((folder / "segments").iterdir())) != backend.stats().segments:
                return "orphans were left"
    except PalmetteError as error:
        return f"{type(error).__name__}: {error}"
    return ""


# -- kills --------------------------------------------------------------------------------------------------


@dataclass
class Scenario:
    """Something a process does and may be killed in, and what must hold then."""

    make: Callable[[Path], None]
    do: Callable[[Path, Callable[[], object]], object]
    """Gets the folder, and what to call after each step that is done."""
    check: Callable[[Path, int], str]
    """Gets the folder and the number of steps that were done; returns a fault."""
    calls: int = 0


def write_steps(folder: Path, done: Callable[[], object]) -> None:
    with LocalBackend.open(folder / "index") as backend:
        for step in STEPS:
            step(backend)
            done()


def back_up(folder: Path, done: Callable[[], object]) -> None:
    with Index.open(folder / "index", verify=False) as index:
        index.backup(folder / "copy")
    done()


def check_back_up(folder: Path, done: int) -> str:
    made = ["index", "copy"] if done or (folder / "copy").exists() else ["index"]
    expected = contents(original_index())
    return "the index or its copy is another" if any(contents(folder / name) != expected for name in made) else ""


def train(folder: Path, done: Callable[[], object]) -> None:
    how = {"output_dir": folder / "run", "resume": True, "cache": folder / "cache", "evaluate_every": 2}
    options = tiny.settings(depth=3, start="random", steps=6, learn_space=False, **how)
    model = TreeModel.fit(tiny.pairs(), encoder=FakeEncoder(48), **options)
    done()
    if not (folder / "checkpoint").exists():
        model.save_pretrained(folder / "checkpoint")
    done()
    Index.build(tiny.documents(), model, folder / "index", progress=False).close()
    done()


def check_train(folder: Path, done: int) -> str:
    if done > 1 or (folder / "checkpoint").exists():
        load_model(folder / "checkpoint")
    if done > 2 or (folder / "index").exists():
        with Index.open(folder / "index", verify="full") as index:
            if len(index) not in ((48,) if done > 2 else (0, 48)):
                return f"{len(index)} documents"
    train(folder, lambda: None)  # goes on where it was killed
    with Index.open(folder / "index", verify="full") as index:
        expected = trained_fingerprint()
        return "" if len(index) == 48 and index.model.fingerprint == expected else "another model"


@cache
def trained_fingerprint() -> str:
    """Fingerprint of a training that nobody disturbs."""
    with tempfile.TemporaryDirectory(dir=fast_place()) as folder:
        train(Path(folder), lambda: None)
        return load_model(Path(folder, "checkpoint")).fingerprint


def scenarios(home: Path) -> dict[str, Scenario]:
    states = play(home)
    return {
        "write": Scenario(
            lambda folder: shutil.copytree(home / "0", folder / "index"),
            write_steps,
            lambda folder, done: check_store(folder / "index", states[done : done + 2]),
        ),
        "train": Scenario(Path.mkdir, train, check_train),
        "backup": Scenario(lambda folder: shutil.copytree(original_index(), folder / "index"), back_up, check_back_up),
    }


def count_calls(work: Callable[[], object], folder: Path, *, reads: bool = False) -> int:
    """Calls on a folder that work makes undisturbed."""
    met: list[str] = []
    status = watch(work, folder, lambda _, call: met.append(call) or 0, reads=reads)
    assert status == 0, status
    return len(met)


def kill(scenario: Scenario, folder: Path, rng: random.Random) -> str:
    """Kill a scenario at one of its system calls; returns a fault."""
    if not scenario.calls:
        scenario.make(folder)
        scenario.calls = count_calls(lambda: scenario.do(folder, lambda: None), folder)
        shutil.rmtree(folder)
    scenario.make(folder)
    last, how = rng.randrange(scenario.calls), rng.choice([KILL, TORN])
    reading, writing = os.pipe()
    work = partial(scenario.do, folder, lambda: os.write(writing, b"."))
    status = watch(work, folder, lambda n, _: how if n == last else 0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        done = len(pipe.read())
    if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL) and status:
        return f"the child ended with {status}"
    try:
        return scenario.check(folder, done)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def kills(home: Path) -> One:
    """A tenth of the kills strike training, saving and building, one in twenty a backup."""
    known = scenarios(home)

    def one(number: int, rng: random.Random) -> tuple[str, str]:
        rare = {21: "backup", 31: "backup"}
        name = rare.get(number % 40, "write") if number % 10 else "train"
        fault = kill(known[name], home / "work", rng)
        return f"{name}: {'fault' if fault else 'before or after'}", fault

    return one


# -- failing system calls -----------------------------------------------------------------------------------


def fail(home: Path, states: list[Any], rng: random.Random, totals: dict[int, int]) -> str:
    """Let a call of one step, or of reading after the last, fail once or from there on; returns what came of it."""
    step, folder, said, reading = rng.randrange(len(STEPS) + 1), home / "work", home / "said", rng.random() < 0.2
    said.unlink(missing_ok=True)

    def work() -> None:
        try:
            with LocalBackend.open(folder, lock_timeout=1) as backend:
                [*STEPS, state_of][step](backend)
            said.write_text("done")
        except PalmetteError as error:
            said.write_text(f"refused {type(error).__name__}")
        except BaseException as error:
            said.write_text(f"foreign {type(error).__name__}: {error}")

    shutil.copytree(home / str(step), folder)
    if step not in totals:
        totals[step] = count_calls(work, folder, reads=True)
        shutil.rmtree(folder)
        shutil.copytree(home / str(step), folder)
    first, once = rng.randrange(totals[step]), rng.random() < 0.5
    code = rng.choice([errno.EIO, errno.ENOSPC, errno.EDQUOT, SHORT])

    def decide(n: int, call: str) -> int:
        if n < first or (once and n > first):
            return 0
        if call in READS:
            return errno.EIO if reading or n == first else 0
        return code if code != SHORT or (call in ("write", "pwrite64") and n == first) else errno.ENOSPC

    status = watch(work, folder, decide, reads=True)
    told = said.read_text() if said.exists() else f"died ({status})"
    fault = check_store(folder, states[step:][:2][-1:] if told == "done" else states[step:][:2])
    return f"fault: {told}; then {fault}" if fault else told


def calls(home: Path) -> One:
    """Every step of the store, and reading it, with a call that fails: state before or after, and errors of our own."""
    states, totals = play(home), dict[int, int]()

    def one(_: int, rng: random.Random) -> tuple[str, str]:
        told = fail(home, states, rng, totals)
        return told.split(":")[0], told if told.startswith(("fault", "foreign", "died")) else ""

    return one


# -- damaged files ------------------------------------------------------------------------------------------


@cache
def original_index() -> Path:
    """An index under a trained tree: two segments, long texts and values, deleted documents; a live copy beside it."""
    home = Path(tempfile.mkdtemp(dir=fast_place()))
    atexit.register(shutil.rmtree, home)
    given = [replace(d, payload={"n": 1}) for d in tiny.documents()]
    long = [replace(d, id=f"{d.id}-long", text=d.text * 300) for d in given[:4]]
    long = [replace(d, metadata={**d.metadata, "note": "x" * 6000}) for d in long]
    with Index.build([*given[:40], *long], tiny.tree(), home / "index", progress=False) as index:
        index.compact()
        index.add(given[40:], progress=False)
        index.delete(["red-cat", "red-ant"])
        shutil.copytree(home / "index", home / "live")  # the log is not yet taken in
    return home / "index"


QUERIES = ["where does the red cat live?", "owl in house 9"]
FILTERS: list[Any] = [None, {"colour": "red"}, {"house": {"$gte": 20}}, {"note": {"$exists": True}}]
FILTERS += [{"note": "x" * 6000}]


def observe(index: Index) -> Any:
    """Everything a user sees of an index."""
    hits = [index.search(QUERIES, 6, filter=filter) for filter in FILTERS]
    found = [[(hit.id, hit.score.hex(), hit.document) for hit in some] for many in hits for some in many]
    ids = [document.key for document in index.documents()]
    return len(index), found, index.get(ids), [d.key for d in index.documents(FILTERS[-1])]


def contents(folder: Path) -> Any:
    with Index.open(folder) as index:
        return observe(index)


def harm(path: Path, rng: random.Random) -> str:
    """Damage a file; returns how."""
    content = bytearray(path.read_bytes())
    size = len(content)
    kinds = ["flip", "noise", "zeros", "truncate", "extend", "remove", "page", "copy"]
    kind = rng.choices(kinds, [8, 4, 3, 3, 1, 1, 3, 2])[0]
    place = rng.randrange(max(size, 1))
    page = place // PAGE * PAGE
    if kind == "remove":
        path.unlink()
        return kind
    if kind == "flip" and size:
        content[place] ^= 1 << rng.randrange(8)
    elif kind == "noise":
        length = min(rng.randint(1, 64), size - place)
        content[place : place + length] = rng.randbytes(length)
    elif kind == "zeros":
        content[place : place + 512] = bytes(min(512, size - place))
    elif kind == "truncate":
        del content[rng.choice([place, page]) :]
    elif kind == "extend":
        content += rng.randbytes(rng.choice([5, PAGE]))
    elif kind == "page":
        content[page : page + PAGE] = bytes(min(PAGE, size - page))
    elif size > 2 * PAGE:
        other = rng.randrange(size // PAGE) * PAGE
        content[page : page + PAGE] = content[other : other + PAGE][: size - page]
    path.write_bytes(content)
    return f"{kind} at {place} of {size}"


def judge(folder: Path, expected: Any) -> str:
    """How an index with a damaged file behaves."""
    where = "noticed at opening"
    try:
        with Index.open(folder) as index:
            where = "noticed in use"
            return "harmless" if observe(index) == expected else "wrong answer"
    except PalmetteError as error:
        named = any(path.name in str(error) for path in [folder, *original_index().rglob("*")])
        return where if named else f"{where}, not named: {type(error).__name__} {error}"
    except BaseException as error:
        return f"foreign {type(error).__name__}: {error}"


def damages(home: Path) -> One:
    """Damage every kind of file of an index, its checkpoint among them; half of the time of the database or log."""
    original, work = original_index(), home / "work"
    expected = contents(original)

    def one(number: int, rng: random.Random) -> tuple[str, str]:
        shutil.copytree(original.with_name("live") if number % 3 == 0 else original, work)
        files = sorted(path for path in work.rglob("*") if path.is_file() and path.name[0] != ".")
        heavy = [path for path in files if ".sqlite3" in path.name]
        path = rng.choice(heavy if rng.random() < 0.5 else files)
        how = f"{path.relative_to(work)} {harm(path, rng)}"
        child = forked(lambda pipe: pipe.write(judge(work, expected)))
        told = child[1].read() or "died"
        ended(child)
        group = "database" if path in heavy else "checkpoint" if "model" in path.parts[-2] else "arrays, JSON"
        sound = told.startswith(("harmless", "noticed")) and "not named" not in told
        return f"{group}: {told.split(':')[0]}", "" if sound else f"{how}: {told}"

    return one


KINDS = {"kills": kills, "damages": damages, "calls": calls}

if __name__ == "__main__":
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("kinds", nargs="+", choices=KINDS)
    parser.add_argument("--count", type=int, nargs="+", default=[100], help="of each kind, or one number for all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="repeat one number")
    args = parser.parse_args()
    failed = False
    for kind, count in zip(args.kinds, args.count * (len(args.kinds) // len(args.count)), strict=True):
        began, results, faults = time.monotonic(), Counter[str](), list[str]()
        with tempfile.TemporaryDirectory(dir=fast_place()) as home:
            one = KINDS[kind](Path(home))
            for number in range(count) if args.only is None else [args.only]:
                came, fault = one(number, random.Random(f"{args.seed} {number}"))
                results[came] += 1
                faults += [f"{number} {came}; {fault}"] if fault else []
                shutil.rmtree(Path(home, "work"))
        print(f"{sum(results.values())} {kind} in {time.monotonic() - began:.0f} s, seed {args.seed}")
        for name, number in sorted(results.items()):
            print(f"{number:>7}  {name}")
        print("\n".join(faults) or "no fault", flush=True)
        failed |= bool(faults)
    sys.exit(failed)
