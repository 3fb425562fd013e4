"""What company costs: processor time of questions, an index and a fit beside busy processes, and under a quota.

    python benchmarks/busy.py [--first torch]

Each row runs in a process of its own: alone, beside one and two processes that compute without end, and, where control
groups may be made, alone under a quota of one core. *Processor time* is of all its threads: the clock depends on the
company, processor time should not. ``--first torch`` imports torch before palmette, as a program may.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time, sleep

ENCODER = "packaged:all-MiniLM-L6-v2"
QUESTIONS = 60
DOCUMENTS = 160
STEPS = 30
QUOTA = Path("/sys/fs/cgroup/cpu")
"""Where control groups of the first version set the processor time of a group."""
PLACES = {"alone": 0, "beside 1": 1, "beside 2": 2, "quota of a core": 0}
WORK = ("a question", "an index", "a fit")


def measured() -> dict[str, tuple[float, float]]:
    """Milliseconds of processor time and of the clock: of a question in the median, of the rest in all."""
    from palmette import Document, Index, RetrievalData, TreeModel, sample_data

    data = sample_data()
    corpus = data.corpus[:DOCUMENTS]
    times = dict[str, tuple[float, float]]()

    @contextmanager
    def timed(name: str) -> Iterator[None]:
        begun = process_time(), perf_counter()
        yield
        times[name] = 1e3 * (process_time() - begun[0]), 1e3 * (perf_counter() - begun[1])

    with Index.build([Document("a", "warm")], encoder=ENCODER, progress=False) as warm:
        warm.search("warm")
    with timed("an index"):
        index = Index.build(corpus, encoder=ENCODER, progress=False)
    index.search("warm")
    asked = list[tuple[float, float]]()
    for text in list(data.queries.values())[:QUESTIONS]:
        with timed("a question"):
            index.search(text)
        asked.append(times["a question"])
    times["a question"] = median(cpu for cpu, _ in asked), median(clock for _, clock in asked)
    kept = {document.id for document in corpus}
    qrels = {
        split: {query: grades for query, grades in judged.items() if kept.issuperset(grades)}
        for split, judged in data.qrels.items()
    }
    with TemporaryDirectory() as cache, timed("a fit"):
        some = RetrievalData("some", corpus, data.queries, qrels)
        TreeModel.fit(some, encoder=ENCODER, steps=STEPS, progress=False, cache=cache)
    return times


def child(group: Path | None, first: str | None) -> dict[str, tuple[float, float]]:
    """Return the times of a new process, in a control group where one is given."""

    def enter() -> None:
        if group is not None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    command = [sys.executable, __file__, "--measure", *(["--first", first] if first else [])]
    output = subprocess.run(command, preexec_fn=enter, stdout=subprocess.PIPE, check=True).stdout
    times: dict[str, tuple[float, float]] = json.loads(output)
    return times


@contextmanager
def quota() -> Iterator[Path | None]:
    """A control group that may use one core, of however many it sees; None where none may be made."""
    group = QUOTA / f"palmette-{os.getpid()}"
    with suppress(OSError):
        group.mkdir()
        (group / "cpu.cfs_quota_us").write_text("100000")
        (group / "cpu.cfs_period_us").write_text("100000")
    try:
        yield group if group.exists() else None
    finally:
        with suppress(OSError):
            group.rmdir()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", help="a module that is imported first")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.first:
        __import__(args.first)
    if args.measure:
        print(json.dumps(measured()))
        return
    print(f"| processor time, ms (clock) | {' | '.join(WORK)} |\n|---|{'---:|' * len(WORK)}")
    for place, companions in PLACES.items():
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(companions)]
        sleep(1)
        try:
            with quota() as group:
                if place.startswith("quota") and group is None:
                    continue
                times = child(group if place.startswith("quota") else None, args.first)
        finally:
            for process in busy:
                process.kill()
        cells = [f"{times[work][0]:,.1f} ({times[work][1]:,.1f})" for work in WORK]
        print(f"| {place} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
