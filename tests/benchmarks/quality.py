"""Quality by representation size: trees at every level beside the encoder and BM25, over several seeds.

    python tests/benchmarks/quality.py DATA [DATA …] [--seeds 0 1 2] [--steps 1000] [--encoder E] [--out FILE]

DATA are BEIR folders with train, dev and test judgements. Training chooses its weights on dev; test is only
looked at here. Encodings are kept in the cache (``--cache``), so that a second run only trains.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

from palmette import Index, RetrievalData, TreeModel, load_data, load_encoder
from palmette.baselines import BM25, EncoderBaseline
from palmette.cache import CachedEncoder
from palmette.metrics import score_run

METRICS = ("ndcg@10", "recall@10")


def scores(data: RetrievalData, found: list[list[str]]) -> dict[str, float]:
    """The metrics of a ranking of the test queries."""
    judged = data.split("test")
    every = score_run(dict(zip(judged.queries, found, strict=True)), judged.qrels, ks=(10,))
    return {name: every[name] for name in METRICS}


def measure(folder: str, args: argparse.Namespace) -> dict[str, Any]:
    """All rows of one data set: name → metric → list over seeds."""
    data = load_data(folder, titles=not args.no_titles)
    encoder = CachedEncoder(load_encoder(args.encoder), args.cache)
    texts = list(data.split("test").queries.values())
    rows: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))

    def record(name: str, found: list[list[str]]) -> None:
        for metric, value in scores(data, found).items():
            rows[name][metric].append(value)

    record("BM25", BM25(data.corpus).search(texts, 10).ids)
    record(f"encoder ({encoder.dimension})", EncoderBaseline(encoder, data.corpus).search(texts, 10).ids)
    seconds = []
    for label, steps in (("tree, untrained", 0), ("tree", args.steps)):
        for seed in args.seeds:
            begun = time.perf_counter()
            model = TreeModel.fit(
                data,
                encoder=encoder,
                cache=encoder.cache,
                depth=args.depth,
                steps=steps,
                seed=seed,
                schedule=args.schedule,
            )
            seconds.append(time.perf_counter() - begun)
            index = Index.build(data.corpus, model)
            for level in range(args.depth, 0, -1):
                record(f"{label} ({2**level})", index.rank(texts, 10, level=level).ids)
            index.close()
            print(f"  {data.name}: {label}, seed {seed}: {seconds[-1]:.0f} s", flush=True)
    return {"data": data.summary(), "train_seconds": round(seconds[-1], 1), "rows": rows}


def table(result: dict[str, Any]) -> str:
    """Markdown: mean ± spread over the seeds."""
    data = result["data"]
    head = (
        f"**{data['name']}** ({data['documents']:,} documents; one training {result['train_seconds']:.0f} s)"
    )
    lines = [
        head,
        "",
        "| representation (columns) | " + " | ".join(METRICS) + " |",
        "|---|" + "---:|" * len(METRICS),
    ]
    for name, values in result["rows"].items():
        cells = []
        for metric in METRICS:
            spread = f" ± {pstdev(values[metric]):.4f}" if len(values[metric]) > 1 else ""
            cells.append(f"{mean(values[metric]):.4f}{spread}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="+", help="BEIR folders")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--depth", type=int, default=10)
    parser.add_argument("--schedule", default="stochastic", choices=["stochastic", "constant"])
    parser.add_argument("--encoder", default="packaged:all-MiniLM-L6-v2")
    parser.add_argument("--no-titles", action="store_true", help="leave titles out of the texts")
    parser.add_argument("--cache", type=Path, help="where encodings are kept")
    parser.add_argument("--out", type=Path, help="write the figures as JSON too")
    args = parser.parse_args()
    results = [measure(folder, args) for folder in args.data]
    print("\n\n".join(table(result) for result in results))
    if args.out:
        args.out.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
