"""Every command that the pages print again, page by page: what is finished is skipped, so a broken-off run goes on.

    PALMETTE_DATA=FOLDER python benchmarks/run.py [--quick] [--pages quality speed …] [--list]

FOLDER (DATA on the pages) holds the BEIR folders ``squad``, ``scifact``, ``medquad`` and ``chorus_icecat``, and
``wordnet_nouns``; commands whose data are not there are skipped and named. Pages are written to ``--work`` (WORK), to
be compared with those of the repository; ``--update`` goes on with these instead. ``--quick`` takes one seed, few steps
and small sets, about ten minutes.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from common import parse_with_data

HERE = Path(__file__).parent
RESULTS = "benchmarks/results/"
QUICK = """
quality: quality.py topics DATA/squad --out RESULTS/quality.md
speed: speed.py scifact --sizes 10000 --seconds 1 --out RESULTS/speed.md
speed: serving.py --out RESULTS/speed.md
fields: fields.py DATA/medquad --layers 0 --tokens 72 --corpus 1000 --steps 50 --queries 100 --out RESULTS/fields.md
paths: paths.py DATA/scifact --out RESULTS/paths.md
layers: layers.py DATA/squad --train 300 --queries 100 --out RESULTS/layers.md
relevance: relevance.py index packages --cache WORK/relevance --out RESULTS/relevance.md
taxonomy: taxonomy.py toy --rows default --steps 500
qdrant: qdrant.py --folder WORK/both --documents 2000 --out RESULTS/qdrant.md
postgres: postgres.py --folder WORK/both --documents 2000 --out RESULTS/postgres.md
passages: passages.py --sets uv --above none words
topics: topics.py
light: light.py quality
onnx: exported.py quality hotpot_mini
encoders: encoders.py packaged:all-MiniLM-L6-v2 squad --cache WORK/encoders
pairs: curve.py squad --out RESULTS/pairs.md
answers: answers.py --sets uv
marks: marks.py --sets uv
mixed: mixed.py --kinds slides
peers: peers.py --sets uv --systems palmette
rerank: rerank.py fairytaleqa --documents 600 --questions 60 --only-simulated --work WORK/rerank
reader: reader.py spans DATA/squad --retrieved 50 --work WORK/readers --out RESULTS/reader.md steps=20
"""


class Step(NamedTuple):
    """One command; what it prints is kept in ``told`` where it writes no page, and tells that it is finished."""

    page: str
    command: list[str]
    told: Path | None
    needs: list[Path]


def printed(page: Path) -> Iterator[tuple[str, str]]:
    """The commands of a page, shell variables filled in, without those that need a GPU."""
    text = page.read_text("utf-8").replace(" \\\n", " ")
    for name, value in re.findall(r'^    (\w)="(.*)"$', text, re.M):
        text = text.replace(f"${name}", value)
    command = r"^    (?:PALMETTE_DATA=DATA )?(?:python benchmarks/(?!gpu_)|(?=palmette ))(.*)"
    for line in re.findall(command, text, re.M):
        yield page.stem, line


def steps(lines: Iterable[tuple[str, str]], data: Path, work: Path, out: Path) -> Iterator[Step]:
    """Pages and their commands with the folders filled in."""
    folders = {"DATA/": data, "WORK/": work, "RESULTS/": out, RESULTS: out}
    for number, (page, line) in enumerate(lines):
        words = shlex.split(line)
        needs = [data / word[5:] for word in words if word.startswith("DATA/")]
        for name, folder in folders.items():
            words = [str(folder / word.removeprefix(name)) if word.startswith(name) else word for word in words]
        yield Step(page, words, None if "--out" in words else work / f"{page}-{number}.txt", needs)


def run(step: Step, data: Path, work: Path) -> bool:
    """One command, unless it is finished or its data are missing; whether it went well."""
    shown = shlex.join(step.command)
    missing = [path for path in step.needs if not path.exists()]
    if missing or (step.told is not None and step.told.exists()):
        print(f"skipped, {f'there is no {missing[0]}' if missing else 'finished'}: {shown}", flush=True)
        return True
    print(f"== {shown}", flush=True)
    program = ["-m", "palmette"] if step.command[0] == "palmette" else [str(HERE / step.command[0])]
    places = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, *program, *step.command[1:]],
        cwd=work,
        env=os.environ | {"PALMETTE_DATA": str(data), "PYTHONPATH": places},
        check=False,
        stdout=subprocess.PIPE if step.told else None,
        text=True,
    )
    if step.told:
        print(done.stdout)
    if step.told and done.returncode == 0:
        step.told.write_text(done.stdout, encoding="utf-8")
    return done.returncode == 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing; the exit status says whether all went well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", default=os.environ.get("QUICK") == "1")
    parser.add_argument("--pages", nargs="+", help="only these")
    parser.add_argument("--work", type=Path, default=Path("build/benchmarks"), help="models and printed tables")
    parser.add_argument("--update", action="store_true", help="add what the repository's own pages lack")
    parser.add_argument("--list", action="store_true", help="print the commands")
    args = parse_with_data(parser, argv)
    data, work = args.data.resolve(), (args.work / "quick" if args.quick else args.work).resolve()
    lines = [line for page in sorted((HERE / "results").glob("*.md")) for line in printed(page)]
    if args.quick:
        lines = [tuple(line.split(": ", 1)) for line in QUICK.strip().splitlines()]
    every = list(steps(lines, data, work, HERE / "results" if args.update else work))
    chosen = [step for step in every if not args.pages or step.page in args.pages]
    if not chosen:
        parser.error(f"there are the pages {', '.join(dict.fromkeys(step.page for step in every))}")
    if args.list:
        print("\n".join(f"{step.page}: {shlex.join(step.command)}" for step in chosen))
        return 0
    work.mkdir(parents=True, exist_ok=True)
    failed = [step for step in chosen if not run(step, data, work)]
    for step in failed:
        print(f"failed: {shlex.join(step.command)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
