"""Documents with fields: CHARM beside its rivals and without its parts, on judged data.

    python tests/benchmarks/fields.py DATA [DATA …] --seeds 0 1 2                 # with the training judgements
    python tests/benchmarks/fields.py DATA --folds 5                              # cross validation, for few judgements
    python tests/benchmarks/fields.py DATA --judged 50 --split dev                # with so few judged questions

DATA are BEIR folders named ``medquad``, ``chorus_icecat``, ``scifact`` or ``squad``. Every finished method and seed is
a line of the ``.jsonl`` beside ``--out``: a run that was broken off goes on. ``--methods`` chooses (names or patterns),
``--pool 0`` ranks all documents. On one GPU everything takes about an hour:
``--steps 2000 --batch 256 --pool 0 --queries 0``.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from charm.bench import Bench, bm25_rows, model_rows
from charm.methods import METHODS, Method, fields_of
from charm.report import tables
from recording import append, read, write_part

from palmette import FieldsModel, load_encoder

JUDGED = 1
"""A pool that holds nothing but what is judged for the questions asked."""


class Lines:
    """The results of one data set: what there is, and what is missing."""

    def __init__(self, store: Path, titles: dict[int, str], folds: int) -> None:
        self.store, self.titles, self.folds = store, titles, folds
        self.done = {(r["title"], r.get("method"), r.get("seed")) for r in read(store)}

    def missing(self, method: str, seed: int) -> list[int]:
        """The pools that a method has not been measured in."""
        return [pool for pool, title in self.titles.items() if (title, method, seed) not in self.done]

    def keep(self, pool: int, method: str, seed: int, rows: dict[str, Any], facts: dict[str, Any]) -> None:
        """Write down what was measured."""
        line = {"title": self.titles[pool], "method": method, "seed": seed, "folds": self.folds}
        line["facts"] = facts
        line["rows"] = {mode: {"scores": m.scores, "by_query": m.by_query} for mode, m in rows.items()}
        append(self.store, line)


def measure(folder: str, args: argparse.Namespace, store: Path) -> None:
    """Whatever is missing of one data set."""
    bench = Bench.load(folder, 0, args.queries)
    bench = bench.cut(args.corpus) if args.corpus else bench
    lines = Lines(store, {pool: title_of(bench.name, pool, args) for pool in args.pool}, args.folds)
    runs = range(args.folds) if args.folds else args.seeds  # a fold counts as a seed
    benches = {run: bench.folded(args.folds, run) if args.folds else bench for run in runs}
    if args.judged:
        benches = {run: bench.few(args.judged, run, args.split) for run in runs}
        args = argparse.Namespace(**vars(args) | {"split": "test"})
    for run in runs if args.folds else [0]:  # words know no seed
        bench = benches[run if args.folds else args.seeds[0]]
        for pool in lines.missing("BM25", run):
            for name, measured in bm25_rows(replace(bench, pool=pool), args.split).items():
                lines.keep(pool, name, run, {"words": measured}, {})
    for name in args.methods:
        method = METHODS[name]
        options = {"steps": args.steps, "batch_size": args.batch, "document_tokens": args.tokens}
        options |= method.options
        for seed in runs if options["steps"] or args.folds else args.seeds[:1]:
            pools = lines.missing(name, seed)
            if not pools:
                continue
            bench = benches[seed]
            began = time.perf_counter()
            model = fitted(bench, method, options, seed, args)
            trained = time.perf_counter() - began
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024  # of the whole process, so far
            dev = dict(model.record.metrics)
            about = {"seconds to train": round(trained, 1), "peak MiB": peak, "dev": dev}
            for pool in pools:
                rows, facts = model_rows(model, replace(bench, pool=pool), args.split, method.modes)
                lines.keep(pool, name, seed, rows, facts | about)
            print(f"  {bench.name}: {name}, seed {seed}: {time.perf_counter() - began:.0f} s", flush=True)
            write(args.out, store)


def title_of(name: str, among: int, args: argparse.Namespace) -> str:
    """What a table is of."""
    some = f"{args.judged} of " if args.judged else ""
    training = f"with {some}its training judgements"
    if args.folds:
        training = f"{args.folds}-fold cross validation over all of its judged queries"
    size = f"{args.steps} steps of {args.batch}, {args.tokens} tokens a document"
    size += f", {args.corpus} documents" if args.corpus else ""
    if args.layers is not None:
        size += f", the last {args.layers} layers" if args.layers else ", encoder frozen"
    pool = {0: "all documents", JUDGED: "what is judged for its questions"}.get(among, f"{among} documents")
    return f"{name}, {training} ({size}), {pool} ranked, {args.split}"


def fitted(bench: Bench, method: Method, options: dict[str, Any], seed: int, args: argparse.Namespace) -> FieldsModel:
    """One model."""
    encoder = load_encoder(args.encoder, device=args.device, dtype=args.dtype)
    return method.model.fit(
        bench.data, encoder=encoder, fields=fields_of(method, bench.fields), device=args.device, seed=seed,
        precision=args.precision, learning_rate=args.rate, trained_layers=args.layers,
        evaluate_every=max(1, args.steps // 4), progress=None, **options,
    )  # fmt: skip


def write(out: Path, store: Path) -> None:
    """The tables of all that is stored."""
    write_part(out, "fields", tables(read(store)))


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("data", nargs="*", help="BEIR folders")
    add("--methods", nargs="+", default=["*"], help="names or patterns")
    add("--seeds", type=int, nargs="+", default=[0])
    add("--folds", type=int, default=0, help="cross validation instead of seeds")
    add("--judged", type=int, default=0, help="learn from so few judged questions")
    add("--steps", type=int, default=400)
    add("--batch", type=int, default=64)
    add("--rate", type=float, default=5e-5)
    add("--tokens", type=int, default=128, help="of a document")
    add("--layers", type=int, help="how many of the last layers learn; all by default")
    add("--pool", type=int, nargs="+", default=[3000], help="documents ranked; 0 for all, 1 for the judged")
    add("--queries", type=int, default=500, help="judged queries; 0 for all")
    add("--corpus", type=int, default=0, help="train on and rank so many documents; 0 for all")
    add("--dtype", default="auto", help="what the encoder computes in, where it does not learn")
    add("--split", default="test", choices=["test", "dev", "train"])
    add("--encoder", default="packaged:all-MiniLM-L6-v2")
    add("--precision", default="auto", choices=["auto", "float32", "bfloat16"])
    add("--device", help="where to train and encode")
    add("--out", type=Path, default=Path("fields.md"), help="the tables; results lie beside them")
    args = parser.parse_args(argv)
    args.methods = [name for name in METHODS if any(fnmatch(name, pattern) for pattern in args.methods)]
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Measure what is missing, then write what there is."""
    args = arguments(argv)
    store = args.out.with_suffix(".jsonl")
    for folder in args.data:
        measure(folder, args, store)
    write(args.out, store)


if __name__ == "__main__":
    main()
