"""Words and structure together: quality on judged collections, and the time words add to a search.

    python tests/benchmarks/hybrid.py quality DATA [DATA …] [--methods tree …] [--split test] [--steps N] [--out FILE]
    python tests/benchmarks/hybrid.py latency [--documents 100000] [--out FILE]

DATA are BEIR folders with train, dev and test judgements, or ``python`` for the standard library's. Models, and how
much words count (``auto``), learn from train and dev; the split named is only measured.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from palmette import Document, Index, RetrievalData, TreeModel, load_data, load_encoder, sample_data
from palmette.baselines import BM25, EncoderBaseline
from palmette.cache import CachedEncoder
from palmette.metrics import score_run
from palmette.registry import model_class
from palmette.search.fixed import to_fixed

WEIGHTS: tuple[Any, ...] = (0, 0.3, 0.5, 0.7, "auto")


def loaded(name: str, titles: bool) -> RetrievalData:
    """A collection by folder, or the standard library."""
    return sample_data("small") if name == "python" else load_data(name, titles=titles)


def quality(args: argparse.Namespace) -> list[str]:
    """A table: each method alone, with fixed weights of words, and with what it has learned."""
    head = [
        "data",
        "method",
        "encoder",
        "BM25",
        *(f"lexical={weight}" for weight in WEIGHTS),
        "learned",
        "gain",
    ]
    lines = [f"| {' | '.join(head)} |", "|---|---|" + "---:|" * (len(head) - 2)]
    encoder = CachedEncoder(load_encoder(args.encoder), args.cache)
    for name in args.data:
        data = loaded(name, titles=Path(name).name not in args.no_titles)
        judged = data.split(args.split)
        texts = list(judged.queries.values())

        def ndcg(ids: list[list[str]], judged: Any = judged) -> float:
            return score_run(dict(zip(judged.queries, ids, strict=True)), judged.qrels, ks=(10,))["ndcg@10"]

        plain = ndcg(EncoderBaseline(encoder, data.corpus).search(texts, 10).ids)
        words = ndcg(BM25(data.corpus).search(texts, 10).ids)
        for method in args.methods:
            options: dict[str, Any] = {} if args.steps is None else {"steps": args.steps}
            model = model_class(method)._fit(data, options, encoder=encoder, cache=encoder.cache)
            index = Index.build(data.corpus, model)
            found = [ndcg(index.rank(texts, 10, lexical=weight).ids) for weight in WEIGHTS]
            mix = model.mixes.get("")
            learned = f"{mix.weight:.2f}" if mix else "–"
            gain = found[-1] - max(plain, words)
            cells = [Path(name).name, method, *(f"{value:.4f}" for value in (plain, words, *found))]
            lines.append(f"| {' | '.join([*cells, learned, f'{gain:+.4f}'])} |")
            print(lines[-1], flush=True)
    return lines


def latency(args: argparse.Namespace) -> list[str]:
    """A table: the median time of one search, encoding included, with and without words."""
    encoder = load_encoder(args.encoder)
    corpus = sample_data("small")
    model = TreeModel.fit(corpus, encoder=CachedEncoder(encoder, args.cache), depth=8, steps=50)
    pool = " ".join(document.text for document in corpus.corpus).split()
    draw = np.random.default_rng(0)
    index = Index.in_memory(model)
    with index.backend.write() as writer:
        for start in range(0, args.documents, 1000):
            places = draw.integers(0, len(pool) - 50, (min(1000, args.documents - start), 2))
            texts = [" ".join(pool[a : a + 50] + pool[b : b + 50]) for a, b in places]
            documents = [Document(id=str(start + place), text=text) for place, text in enumerate(texts)]
            leaves = draw.dirichlet(np.full(model.config.leaves, 0.05), len(documents)).astype(np.float32)
            arrays = {
                spec.name: np.zeros((len(documents), *spec.shape), spec.dtype) for spec in model.arrays()
            }
            arrays["leaves"] = to_fixed(leaves)
            writer.put(documents, arrays)
    asked = list(corpus.split("test").queries.values())[:40]
    times: dict[float, list[float]] = {0: [], 0.5: []}
    for query in asked[:3] + asked:
        for weight, taken in times.items():
            runs = []
            for _ in range(3):
                begun = time.perf_counter()
                index.search(query, 10, lexical=weight)
                runs.append(time.perf_counter() - begun)
            taken.append(1000 * min(runs))
    pure, hybrid = (median(taken[3:]) for taken in times.values())
    return [
        "| documents | method alone (ms) | with words (ms) | added |",
        "|---:|---:|---:|---:|",
        f"| {args.documents:,} | {pure:.1f} | {hybrid:.1f} | {100 * (hybrid / pure - 1):+.0f} % |",
    ]


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["quality", "latency"])
    parser.add_argument("data", nargs="*", help="BEIR folders, or python")
    parser.add_argument("--methods", nargs="+", default=["tree"])
    parser.add_argument("--split", default="test")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--encoder", default="packaged:all-MiniLM-L6-v2")
    parser.add_argument(
        "--no-titles", nargs="*", default=["squad"], help="collections without titles in the texts"
    )
    parser.add_argument("--cache", type=Path, help="where encodings are kept")
    parser.add_argument("--out", type=Path, help="write the table here too")
    args = parser.parse_args()
    lines = quality(args) if args.what == "quality" else latency(args)
    print("\n".join(lines))
    if args.out:
        args.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
