"""Index folders of strangers with right sums: no crash, no hang, no foreign exception, nothing written elsewhere."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from palmette import Document, Index, load_model
from palmette.errors import FilterError, PalmetteError
from palmette.methods.base import Model
from support import tiny
from support.forks import ended, forked
from support.hostile import drawn_harms
from support.stores import fast_place

pytestmark = pytest.mark.skipif(
    not hasattr(os, "fork") or not hasattr(os, "mkfifo"), reason="forks, and pipes with names"
)

SECONDS = 2.0
"""Processor time of one opening, or of one use after it."""
METHODS = {
    "space": tiny.space,
    "paths": tiny.paths,
    "taxonomy": tiny.taxonomy,
    "tree": tiny.tree,
    "fields": tiny.fields,
}
SOME = ["space", "paths", "tree"]

QUERIES = ["where does the red cat live?", '"green dog" sings', "owl 9 house 3", "zzz", "the of"]
FILTERS: list[Any] = [None, {"colour": "red"}, {"house": {"$gte": 20}}, {"tags": "cat"}, {"note": {"$exists": False}}]


def build(home: Path, model: Model) -> Path:
    """Two segments, some rows of them deleted, and a victim outside."""
    home.mkdir()
    given = tiny.with_fields() if model.method == "fields" else tiny.documents()
    with Index.build(given[:20], model, home / "index", progress=False) as index:
        index.compact()
        index.add(given[20:26], progress=False)
        index.delete([given[3].key, given[22].key])
    (home / "victim").write_text("precious")
    return home / "index"


def search(index: Index, draw: random.Random) -> None:
    for hit in index.search(draw.choice(QUERIES), draw.choice([1, 5, 100]), filter=draw.choice(FILTERS)):
        str(hit.explain()), hit.highlights.to_dict(), hit.explain()._repr_html_()


def write(index: Index, draw: random.Random) -> None:
    fresh = [
        Document(f"new{n}", f"The new cat number {n} sings.", {"colour": "red"}) for n in range(draw.choice([1, 30]))
    ]
    index.upsert([*fresh, Document("red-cat", "The red cat has left.")], progress=False)


def elsewhere(use: Callable[[Index, Path], object]) -> Callable[[Index, random.Random], None]:
    def there(index: Index, draw: random.Random) -> None:
        assert isinstance(index.path, Path)
        target = index.path.parent / "made" / uuid4().hex
        use(index, target)

    return there


USES: list[Callable[[Index, random.Random], object]] = [
    search,
    search,
    search,
    lambda index, draw: list(index.documents(draw.choice(FILTERS))),
    lambda index, draw: index.get(["red-cat", "green-dog", "none"]),
    lambda index, draw: index.vectors(["red-cat", "green-dog"]),
    lambda index, draw: (index.stats(), len(index), repr(index)),
    lambda index, draw: index.delete(["red-cat", "white-cow"]),
    lambda index, draw: index.delete(filter={"colour": "red"}),
    lambda index, draw: index.verify(),
    lambda index, draw: index.compact(),
    write,
    lambda index, draw: search(index.filtered({"colour": "red"}), draw),
    elsewhere(lambda index, target: index.backup(target)),
    elsewhere(lambda index, target: index.copy_to(target, progress=False).close()),
]


class Judge:
    """Runs calls and remembers what was neither a result nor a PalmetteError in time."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    def run(self, name: str, call: Callable[[], Any]) -> Any:
        began, value = time.process_time(), None
        try:
            value = call()
        except PalmetteError as error:
            str(error)
        except BaseException as error:
            where = traceback.extract_tb(error.__traceback__)[-3:]
            self.faults.append(
                f"{name}: {type(error).__name__}: {str(error)[:200]} at {[(f.filename[-40:], f.lineno) for f in where]}"
            )
        if (took := time.process_time() - began) > SECONDS:
            self.faults.append(f"{name}: {took:.1f} s of processor time")
        return value


def use(folder: Path, model: Model, draw: random.Random) -> list[str]:
    """Open an index and use it in several ways, then repair it."""
    judge = Judge()
    verify, own = draw.choice(["fast", "fast", "full", False]), draw.random() < 0.5
    index = judge.run("open", lambda: Index.open(folder, model if own else None, verify=verify, lock_timeout=0.5))
    if index is not None:
        with index:
            for number in draw.sample(range(len(USES)), 5):
                judge.run(f"use {number}", lambda number=number: USES[number](index, draw))
    if draw.random() < 0.5:
        loaded = judge.run("load", lambda: load_model(folder / "model"))
        if loaded is not None:
            judge.run("build", lambda: search(Index.build(tiny.documents()[:5], loaded, progress=False), draw))
            judge.run("save", lambda: loaded.save_pretrained(folder.parent / "made" / "model"))
    if draw.random() < 0.3:
        judge.run("repair", lambda: Index.repair(folder, folder.parent / "made" / "repaired", model, progress=False))
    return judge.faults


def outside(home: Path) -> dict[str, tuple[str, bytes]]:
    """Content and links of everything beside the index, what it was asked to make apart."""
    found = {}
    for path in sorted(home.rglob("*")):
        if not {"index", "made"} & set(path.relative_to(home).parts[:1]):
            found[str(path)] = (
                str(path.readlink()) if path.is_symlink() else "",
                path.read_bytes() if path.is_file() else b"",
            )
    return found


def attack(whole: Path, home: Path, model: Model, seed: str) -> str:
    """Harm a copy of an index, let a child use it, and tell what went wrong."""
    draw = random.Random(seed)
    shutil.copytree(whole, home)
    harms = [harm(home / "index", draw) for harm in drawn_harms(draw)]
    before = outside(home)

    def work(pipe: Any) -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
        signal.alarm(100)
        pipe.write("\n".join(use(home / "index", model, draw)) + "\nend")

    child = forked(work)
    told = child[1].read()
    [code] = ended(child)
    faults = [line for line in told.splitlines() if line not in ("", "end")]
    if not told.endswith("end"):
        faults.append(f"the process ended with {code}")
    if outside(home) != before:
        faults.append("something outside was changed")
    shutil.rmtree(home)
    return f"seed {seed}: {'; '.join(harms)}: {' | '.join(faults)}" if faults else ""


ALL = [
    pytest.param([method], 200, marks=[pytest.mark.exhaustive, pytest.mark.timeout(7200)], id=method)
    for method in METHODS
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("methods", "count"), [pytest.param(SOME, 20, id="some"), *ALL])
def test_index_folders_with_right_sums(methods: list[str], count: int, tmp_path: Path) -> None:
    faults = []
    home = Path(fast_place() or tmp_path, f"palmette-hostile-{os.getpid()}")
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    try:
        for method in methods:
            model = METHODS[method]()
            whole = build(home / method, model).parent
            shutil.copytree(whole, home / "warm")
            with Index.open(
                home / "warm" / "index", model, verify="full"
            ) as index:  # loops are compiled before the forks
                for call in USES:
                    with suppress(FilterError):  # a drawn filter may name what no document in a view has
                        call(index, random.Random(method))
            shutil.rmtree(home / "warm")
            faults += [attack(whole, home / "work", model, f"{method} {number}") for number in range(count)]
    finally:
        shutil.rmtree(home, ignore_errors=True)
    assert not (found := [fault for fault in faults if fault]), f"{len(found)} of {len(faults)}\n" + "\n".join(found)
