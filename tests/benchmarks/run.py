"""Every figure of the pages again, page by page: what is finished is skipped, so a run that was broken off goes on.

    PALMETTE_DATA=FOLDER python tests/benchmarks/run.py [--quick] [--pages quality speed …] [--list]

FOLDER holds the BEIR folders ``squad``, ``scifact``, ``medquad`` and ``chorus_icecat``, and ``wordnet_nouns``; commands
whose data are not there are skipped and named. Pages are written to ``--work``, to be compared with those of the
repository; ``--update`` goes on with these instead. ``--quick`` takes one seed, few steps and small sets, about ten
minutes.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from common import parse_with_data

HERE = Path(__file__).parent
FULL = """
quality.py columns DATA/scifact DATA/squad DATA/medquad --questions 300 --out PAGE
quality.py topics DATA/squad python --every 2 --seeds 0 1 2 --out PAGE
# speed
speed.py medquad --data DATA/ --out PAGE
concurrency.py --out PAGE
adapter_overhead.py --out PAGE
# fields
fields.py DATA/medquad FROZEN --corpus 5000 --batch 128 --steps 150 --queries 500 --seeds 0 1 2 --out PAGE
fields.py DATA/chorus_icecat FROZEN --folds 5 --corpus 4500 --steps 150 --queries 500 --out PAGE
fields.py DATA/medquad --queries 500 --tokens 72 --steps 100 --batch 32 --seeds 0 1 2 --corpus 5000 LEARNS
# paths
paths.py DATA/scifact DATA/squad DATA/medquad --seeds 0 1 2 --out PAGE
paths.py --speed 100000 --out PAGE
# layers
layers.py DATA/scifact DATA/squad --out PAGE
# relevance
relevance.py choose --data DATA/ --cache WORK/relevance --out PAGE
relevance.py index --data DATA/ --out PAGE
# taxonomy
taxonomy.py wordnet DATA/wordnet_nouns --rows default --dimensions 16 32 64 --steps 4000 RATE > taxonomy-default.txt
taxonomy.py wordnet DATA/wordnet_nouns --rows pretrain-finetune --dimensions 16 64 PAPER > taxonomy-paper.txt
taxonomy.py pairs DATA/wordnet_nouns --steps 1500 --rate 1.5e-3 > taxonomy-pairs.txt
taxonomy.py toy --rows default regular --seeds 0 1 2 --steps 2500 --rate 2e-3 --set hard=0 > taxonomy-toy.txt
taxonomy.py dimensions --steps 600 --rate 2e-3 --set hard=0 > taxonomy-dimensions.txt
taxonomy.py unseen DATA/wordnet_nouns --steps 800 --batch-size 1024 > taxonomy-unseen.txt
taxonomy.py names --seeds 0 1 2 > taxonomy-names.txt
taxonomy.py graded DATA/chorus_icecat --steps 100 --rate 3e-4 > taxonomy-graded.txt
taxonomy.py speed DATA/wordnet_nouns > taxonomy-speed.txt
# qdrant
qdrant.py --folder WORK/qdrant --documents 100000 --out PAGE
# reader
palmette demo --dir WORK/demo => demo
reader.py demo WORK/demo --out PAGE
reader.py spans DATA/squad --unanswerable DATA/squad/unanswerable.jsonl.gz --seeds 0 1 2 --work WORK/readers --out PAGE
"""
QUICK = """
quality.py topics DATA/squad --out PAGE
# speed
speed.py scifact --data DATA/ --sizes 10000 --seconds 1 --out PAGE
concurrency.py --out PAGE
adapter_overhead.py --out PAGE
# fields
fields.py DATA/medquad FROZEN --corpus 1000 --batch 64 --steps 50 --queries 100 LEARNS
# paths
paths.py DATA/scifact --out PAGE
# layers
layers.py DATA/squad --train 300 --queries 100 --out PAGE
# relevance
relevance.py index packages --data DATA/ --out PAGE
# taxonomy
taxonomy.py toy --rows default --steps 500 > taxonomy-toy.txt
# qdrant
qdrant.py --folder WORK/qdrant --documents 2000 --out PAGE
# reader
reader.py spans DATA/squad --retrieved 50 --work WORK/readers --out PAGE steps=20
"""
SHORT = {
    "FROZEN": "--layers 0 --tokens 72 --dtype bfloat16",
    "LEARNS": '--methods CHARM MVR "all fields joined" --out PAGE',
    "RATE": "--seeds 0 1 2 --rate 1.5e-3",
    "PAPER": "--steps 15000 --batch-size 1024 --rate 1.5e-3 --set finetune_rate=0.05 finetune_share=0.33",
}


class Step(NamedTuple):
    """One command; ``=> NAME`` and ``> FILE`` say what in the working folder tells that it is finished."""

    page: str
    command: list[str]
    mark: Path | None
    printed: bool
    needs: list[Path]


def steps(text: str, data: Path, work: Path, out: Path) -> Iterator[Step]:
    """The commands of a text."""
    page = "quality"
    for line in text.strip().splitlines():
        if line.startswith("# "):
            page = line[2:]
            continue
        for name, value in SHORT.items():
            line = line.replace(name, value) if name in line.split() else line
        words = shlex.split(line)
        needs = [data / word[5:].partition(":")[0] for word in words if word.startswith("DATA/")]
        names = {"DATA/": f"{data}/", "WORK/": f"{work}/", "PAGE": str(out / f"{page}.md")}
        for name, value in names.items():
            words = [value + word.removeprefix(name) if word.startswith(name) else word for word in words]
        sign = next((word for word in words if word in (">", "=>")), None)
        mark = work / words.pop() if sign else None
        yield Step(page, words[:-1] if sign else words, mark, sign == ">", needs)


def run(step: Step) -> bool:
    """One command, unless it is finished or its data are missing; whether it went well."""
    shown = shlex.join(step.command)
    missing = [path for path in step.needs if not path.exists()]
    if missing or (step.mark is not None and step.mark.exists()):
        print(f"skipped, {f'there is no {missing[0]}' if missing else 'finished'}: {shown}", flush=True)
        return True
    print(f"== {shown}", flush=True)
    program = ["-m", "palmette"] if step.command[0] == "palmette" else [str(HERE / step.command[0])]
    command = [sys.executable, *program, *step.command[1:]]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE if step.printed else None, text=True)
    if step.printed:
        print(done.stdout)
    if done.returncode == 0 and step.mark is not None and not step.mark.exists():
        step.mark.write_text(done.stdout or "", encoding="utf-8")
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
    work = (args.work / "quick" if args.quick else args.work).resolve()
    out = HERE / "results" if args.update else work
    every = list(steps(QUICK if args.quick else FULL, args.data.resolve(), work, out))
    chosen = [step for step in every if not args.pages or step.page in args.pages]
    if not chosen:
        parser.error(f"there are the pages {', '.join(dict.fromkeys(step.page for step in every))}")
    if args.list:
        print("\n".join(f"{step.page}: {shlex.join(step.command)}" for step in chosen))
        return 0
    work.mkdir(parents=True, exist_ok=True)
    failed = [step for step in chosen if not run(step)]
    for step in failed:
        print(f"failed: {shlex.join(step.command)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
