"""Documents with fields: CHARM beside its rivals and without its parts, on judged data.

    python benchmarks/fields.py DATA [DATA …] --seeds 0 1 2                 # with the training judgements
    python benchmarks/fields.py DATA --folds 5                              # cross validation, for few judgements

DATA are BEIR folders named ``medquad`` or ``chorus_icecat``. Every finished method and seed is a line of the ``.jsonl``
beside ``--out``: a run that was broken off goes on. ``--methods`` chooses (names or patterns).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from charm import METHODS, Bench, Method, bm25_rows, fields_of, model_rows, tables
from common import ENCODER, command_line
from palmette import FieldsModel, load_encoder
from recording import append, find, read, write_part


def measure(folder: str, args: argparse.Namespace, store: Path) -> None:
    """Whatever is missing of one data set."""
    bench = Bench.load(folder, args.queries)
    bench = bench.cut(args.corpus) if args.corpus else bench
    runs = range(args.folds) if args.folds else args.seeds  # a fold counts as a seed
    benches = {run: bench.folded(args.folds, run) if args.folds else bench for run in runs}
    title = title_of(bench.name, args)

    def missing(method: str, seed: int) -> bool:
        return not find(store, title=title, method=method, seed=seed)

    def keep(method: str, seed: int, rows: dict[str, Any], facts: dict[str, Any]) -> None:
        line = {"title": title, "method": method, "seed": seed, "folds": args.folds, "facts": facts}
        append(store, line | {"rows": rows})

    for run in runs if args.folds else args.seeds[:1]:  # words know no seed
        if missing("BM25", run):
            for name, measured in bm25_rows(benches[run]).items():
                keep(name, run, {"words": measured}, {})
    for name in args.methods:
        method = METHODS[name]
        options = {"steps": args.steps, "batch_size": args.batch, "document_tokens": args.tokens}
        options |= method.options
        for seed in runs if options["steps"] or args.folds else args.seeds[:1]:
            if missing(name, seed):
                began = time.perf_counter()
                model = fitted(benches[seed], method, options, seed, args)
                keep(name, seed, *model_rows(model, benches[seed], method.modes))
                print(f"  {bench.name}: {name}, seed {seed}: {time.perf_counter() - began:.0f} s", flush=True)


def title_of(name: str, args: argparse.Namespace) -> str:
    """What a table is of."""
    training = "with its training judgements"
    if args.folds:
        training = f"{args.folds}-fold cross validation over all of its judged queries"
    size = f"{args.steps} steps of {args.batch}, {args.tokens} tokens a document"
    size += f", {args.corpus} documents" if args.corpus else ""
    if args.layers is not None:
        size += f", the last {args.layers} layers" if args.layers else ", encoder frozen"
    return f"{name}, {training} ({size}), all documents ranked, test"


def fitted(bench: Bench, method: Method, options: dict[str, Any], seed: int, args: argparse.Namespace) -> FieldsModel:
    """One model."""
    return method.model.fit(
        bench.data,
        encoder=load_encoder(args.encoder, dtype=args.dtype),
        fields=fields_of(method, bench.fields),
        seed=seed,
        learning_rate=5e-5,
        trained_layers=args.layers,
        evaluate_every=max(1, args.steps // 4),
        progress=None,
        **options,
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Measure what is missing, then write what there is."""
    parser = command_line(__doc__, "fields.md")
    add = parser.add_argument
    add("data", nargs="*", help="BEIR folders")
    add("--methods", nargs="+", default=["*"], help="names or patterns")
    add("--seeds", type=int, nargs="+", default=[0])
    add("--folds", type=int, default=0, help="cross validation instead of seeds")
    add("--steps", type=int, default=400)
    add("--batch", type=int, default=64)
    add("--tokens", type=int, default=128, help="of a document")
    add("--layers", type=int, help="how many of the last layers learn; all by default")
    add("--queries", type=int, default=500, help="judged queries; 0 for all")
    add("--corpus", type=int, default=0, help="train on and rank so many documents; 0 for all")
    add("--dtype", default="auto", help="what the encoder computes in, where it does not learn")
    add("--encoder", default=ENCODER)
    args = parser.parse_args(argv)
    args.methods = [name for name in METHODS if any(fnmatch(name, pattern) for pattern in args.methods)]
    store = args.out.with_suffix(".jsonl")
    for folder in args.data:
        measure(folder, args, store)
    write_part(args.out, "fields", tables(read(store)))


if __name__ == "__main__":
    main()
