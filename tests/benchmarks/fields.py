"""Documents with fields: CHARM beside its rivals and without its parts, on judged data, and what searching costs.

    python tests/benchmarks/fields.py DATA [DATA …] --seeds 0 1 2                 # with the training judgements
    python tests/benchmarks/fields.py DATA --no-labels                            # from the documents alone
    python tests/benchmarks/fields.py DATA --folds 5                              # cross validation, for few judgements
    python tests/benchmarks/fields.py --latency 10000 100000                      # random vectors

DATA are BEIR folders named ``medquad`` and ``chorus_icecat``. Every finished method and seed is a line of the
``.jsonl`` beside ``--out``: a run that was broken off goes on. ``--methods`` chooses (names or patterns), ``--pool 0``
ranks all documents. On one GPU everything takes about an hour: ``--steps 2000 --batch 256 --pool 0 --queries 0``.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from charm.bench import Bench, bm25_rows, model_rows
from charm.kept import Kept
from charm.latency import latency_table
from charm.methods import METHODS, fields_of
from charm.report import tables

from palmette import FieldsModel, RetrievalData, load_encoder
from palmette.methods.fields.memory import Memory
from palmette.methods.fields.queries import with_field_queries
from palmette.methods.fields.reading import Reader, as_items

MARK = "<!-- What follows is written by fields.py; what stands above is kept. -->"
LATENCY = "latency"


def measure(folder: str, args: argparse.Namespace, store: Path) -> None:
    """Whatever is missing of one data set."""
    bench = Bench.load(folder, args.pool, args.queries)
    bench = bench.cut(args.corpus) if args.corpus else bench
    title = title_of(bench.name, args)
    done = {(r["method"], r["seed"]) for r in read(store) if r["title"] == title}

    def keep(method: str, seed: int, rows: dict[str, Any], facts: dict[str, Any]) -> None:
        line = {"title": title, "method": method, "seed": seed, "folds": args.folds, "facts": facts}
        line["rows"] = {mode: {"scores": m.scores, "by_query": m.by_query} for mode, m in rows.items()}
        with store.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    runs = range(args.folds) if args.folds else args.seeds  # a fold counts as a seed
    benches = {run: bench.folded(args.folds, run) if args.folds else bench for run in runs}
    for run in runs if args.folds else args.seeds[:1]:
        if ("BM25", run) not in done:
            for method, measured in bm25_rows(benches[run], args.split).items():
                keep(method, run, {"words": measured}, {})
    kept = Kept(args.memory)
    for name in args.methods:
        method = METHODS[name]
        options = {"steps": args.steps, "batch_size": args.batch, "document_tokens": args.tokens} | dict(
            method.options
        )
        if args.no_labels:
            options.setdefault("targets", "words")
        fields = fields_of(method, bench.fields)
        layout = {key: options.get(key) for key in ("attention", "sees", "pooling", "whole")} | fields
        memory = kept.of(json.dumps([args.encoder, args.dtype, args.tokens, layout]))
        for seed in runs if options["steps"] or args.folds else args.seeds[:1]:
            if (name, seed) in done:
                continue
            bench = benches[seed]
            began = time.perf_counter()
            model = fitted(bench, memory, fields, options, seed, args)
            trained = time.perf_counter() - began
            rows, facts = model_rows(model, bench, args.split, method.modes)
            kept.save()
            keep(
                name,
                seed,
                rows,
                {**facts, "seconds to train": round(trained, 1), "dev": dict(model.record.metrics)},
            )
            print(f"  {bench.name}: {name}, seed {seed}: {time.perf_counter() - began:.0f} s", flush=True)
            write(args.out, store)


def title_of(name: str, args: argparse.Namespace) -> str:
    """What a table is of."""
    training = "from the documents alone" if args.no_labels else "with its training judgements"
    if args.folds:
        training = f"{args.folds}-fold cross validation over all of its judged queries"
    size = f"{args.steps} steps of {args.batch}, {args.tokens} tokens a document"
    size += f", {args.corpus} documents" if args.corpus else ""
    if args.layers is not None:
        size += f", the last {args.layers} layers" if args.layers else ", encoder frozen"
    pool = f"{args.pool} documents" if args.pool else "all documents"
    return f"{name}, {training} ({size}), {pool} ranked, {args.split}"


def fitted(
    bench: Bench,
    memory: Memory,
    fields: dict[str, str],
    options: dict[str, Any],
    seed: int,
    args: argparse.Namespace,
) -> FieldsModel:
    """One model; what a frozen encoder reads is the same for all seeds."""
    WithoutWords.kept = memory
    model = WithoutWords.fit(
        unlabelled(bench) if args.no_labels else bench.data,
        encoder=load_encoder(args.encoder, device=args.device, dtype=args.dtype),
        fields=fields,
        device=args.device,
        seed=seed,
        precision=args.precision,
        learning_rate=args.rate,
        trained_layers=args.layers,
        evaluate_every=max(1, args.steps // 4),
        progress=None,
        **options,
    )
    model.module.memory = memory if model.module.frozen else None
    return model


class WithoutWords(FieldsModel):
    """Tables are of vectors alone: no time is spent on how much words should count."""

    kept = Memory()

    @classmethod
    def memory(cls) -> Memory:
        return cls.kept

    def calibrated(self) -> list[Any]:
        return []


def unlabelled(bench: Bench) -> RetrievalData:
    """Its documents, and the queries that are made of them: the same ones for every method and seed."""
    alone = replace(bench.data, queries={}, qrels={"train": {}}, labelled=False)
    return replace(with_field_queries(alone, Reader.of(as_items(bench.fields)), 0), labelled=True)


def read(store: Path) -> list[dict[str, Any]]:
    """Finished results."""
    return [json.loads(line) for line in store.read_text("utf-8").splitlines()] if store.exists() else []


def write(out: Path, store: Path) -> None:
    """The tables of all that is stored."""
    results = read(store)
    text = tables([r for r in results if r["title"] != LATENCY])
    text += "".join(f"\n\n## Latency\n\n{r['text']}" for r in results if r["title"] == LATENCY)
    kept = out.read_text("utf-8").partition(MARK)[0] if out.exists() else "# Documents with fields\n\n"
    out.write_text(f"{kept}{MARK}\n\n{text.strip()}\n", encoding="utf-8")


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="*", help="BEIR folders")
    parser.add_argument("--methods", nargs="+", default=["*"], help="names or patterns")
    parser.add_argument("--no-labels", action="store_true", help="train on queries made from the documents")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--folds", type=int, default=0, help="cross validation instead of seeds")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rate", type=float, default=5e-5)
    parser.add_argument("--tokens", type=int, default=128, help="of a document")
    parser.add_argument("--layers", type=int, help="how many of the last layers learn; all by default")
    parser.add_argument("--pool", type=int, default=3000, help="documents ranked; 0 for all")
    parser.add_argument("--queries", type=int, default=500, help="judged queries; 0 for all")
    parser.add_argument(
        "--corpus", type=int, default=0, help="train on and rank so many documents; 0 for all"
    )
    parser.add_argument(
        "--memory", type=Path, help="where to keep what a frozen encoder reads, for the next run"
    )
    parser.add_argument(
        "--dtype", default="auto", help="what the encoder computes in, where it does not learn"
    )
    parser.add_argument("--split", default="test", choices=["test", "dev", "train"])
    parser.add_argument("--encoder", default="packaged:all-MiniLM-L6-v2")
    parser.add_argument("--precision", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument("--device", help="where to train and encode")
    parser.add_argument("--latency", type=int, nargs="+", default=[], help="numbers of documents")
    parser.add_argument(
        "--out", type=Path, default=Path("fields.md"), help="the tables; results lie beside them"
    )
    args = parser.parse_args(argv)
    args.methods = [name for name in METHODS if any(fnmatch(name, pattern) for pattern in args.methods)]
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Measure what is missing, then write what there is."""
    args = arguments(argv)
    store = args.out.with_suffix(".jsonl")
    for folder in args.data:
        measure(folder, args, store)
    if args.latency:
        line = {"title": LATENCY, "text": latency_table(args.latency)}
        kept = [r for r in read(store) if r["title"] != LATENCY]
        store.write_text("".join(json.dumps(r) + "\n" for r in [*kept, line]), encoding="utf-8")
    write(args.out, store)


if __name__ == "__main__":
    main()
