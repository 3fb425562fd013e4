"""Quality by representation size, and what building takes: trees beside their rivals, over several seeds.

    python tests/benchmarks/quality.py DATA [DATA …] --out tests/benchmarks/results/quality.md

DATA are BEIR folders with train, dev and test judgements. Whatever is chosen (weights, rates, widths) is chosen on
dev; test is only looked at here. Every finished system and seed is a line of the ``.jsonl`` beside ``--out``: a run
that was broken off goes on, and one more system is measured without the others (``--systems "tree, mlp"``). With
nothing left to measure, the table is just written again. ``--list`` names the systems; in
``rivals/trees.py`` a tree configuration is one line.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from recording import append, read, write_part
from rivals.bench import Bench
from rivals.report import tables
from rivals.systems import System, systems
from rivals.trees import TREES

KEYS = ("data", "system", "seed")


def chosen(patterns: Sequence[str], every: dict[str, System]) -> list[str]:
    """Systems by name, pattern (``tree*``) or family (``rivals``, ``trees``), in the order of the list."""
    found = [
        name
        for name, system in every.items()
        if any(fnmatch(name, pattern) or system.family == pattern for pattern in patterns)
    ]
    if unknown := [p for p in patterns if not any(fnmatch(n, p) or s.family == p for n, s in every.items())]:
        raise SystemExit(f"no system {unknown[0]!r}; there are: {'; '.join(every)}")
    return found


def settings(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """What a stored result must have been made with to count as done."""
    return {"steps": args.steps, "depth": args.depth, "encoder": args.encoder, "options": TREES.get(name, {})}


def measure(folder: str, args: argparse.Namespace, store: Path) -> None:
    """Whatever is missing of one data set, system by system."""
    name = Path(folder).name + (", text only" if args.no_titles else "")
    done = {
        (r["system"], r["seed"]): r["settings"]
        for r in read(store, *KEYS)
        if r["data"] == name and not args.again
    }
    bench: Bench | None = None
    for system_name in args.systems:
        system = args.every[system_name]
        for seed in args.seeds if system.seeded else args.seeds[:1]:
            if done.get((system_name, seed)) == settings(system_name, args):
                continue
            if bench is None:
                bench = Bench.load(
                    folder,
                    args.encoder,
                    args.cache,
                    titles=not args.no_titles,
                    steps=args.steps,
                    depth=args.depth,
                    device=args.device,
                )
            begun = time.perf_counter()
            measured = system.measure(bench, seed)
            result = {
                "data": name,
                "system": system_name,
                "seed": seed,
                "settings": settings(system_name, args),
                "facts": facts(bench, args),
                "rows": {key: {"scores": scores} for key, scores in measured.rows.items()},
                "seconds": {part: round(value, 3) for part, value in measured.seconds.items()},
                "notes": measured.notes,
            }
            append(store, result)
            print(f"  {name}: {system_name}, seed {seed}: {time.perf_counter() - begun:.0f} s", flush=True)


def facts(bench: Bench, args: argparse.Namespace) -> dict[str, Any]:
    """What the table says of the data."""
    return {
        "documents": len(bench.data.corpus),
        "train pairs": len(bench.data.pairs("train").queries),
        **{split: len(queries) for split, queries in bench.queries.items()},
        "titles": not args.no_titles,
        "encoder": f"{args.encoder.removeprefix('packaged:')}, {bench.documents.shape[1]} columns",
    }


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="*", help="BEIR folders")
    parser.add_argument(
        "--systems", nargs="+", default=["rivals", "tree"], help="names, patterns or families"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--depth", type=int, default=10)
    parser.add_argument("--encoder", default="packaged:all-MiniLM-L6-v2")
    parser.add_argument("--no-titles", action="store_true", help="leave titles out of the texts")
    parser.add_argument("--device", help="where to encode and train")
    parser.add_argument("--cache", type=Path, help="where encodings are kept")
    parser.add_argument(
        "--out", type=Path, default=Path("quality.md"), help="the table; results lie beside it"
    )
    parser.add_argument("--split", default="test", choices=["test", "dev"], help="what the table shows")
    parser.add_argument("--again", action="store_true", help="measure even what is stored")
    parser.add_argument("--list", action="store_true", help="name the systems")
    args = parser.parse_args(argv)
    args.every = systems()
    args.systems = chosen(args.systems, args.every)
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Measure what is missing, then write what there is."""
    args = arguments(argv)
    if args.list:
        print("\n".join(f"{system.family:7} {name}" for name, system in args.every.items()))
        return
    store = args.out.with_suffix(".jsonl")
    for folder in args.data:
        measure(folder, args, store)
    results = read(store, *KEYS)
    order = list(args.every)
    results.sort(key=lambda r: order.index(r["system"]) if r["system"] in order else len(order))
    if not results:
        raise SystemExit(f"nothing is stored in {store}: give a data folder")
    print(text := tables(results, args.split))
    write_part(args.out, "quality", text)


if __name__ == "__main__":
    main()
