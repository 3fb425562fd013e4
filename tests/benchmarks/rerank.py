"""A shortlist by a coarse level of the tree, reranked by the cosine in its space: quality and time.

    python tests/benchmarks/rerank.py squad --out tests/benchmarks/results/quality.md

Quality: nDCG@10 of ``rerank=True`` on held-out queries, as a share of that of exact search with the encoder.
Time: one question at a time, one thread, processor time, on the passages grown to ``--size`` documents as in
``speed.py``; the encoder's search is FAISS's flat inner product over float32 vectors.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import faiss
import numpy as np
import torch
from recording import table, write_part
from speed import grown

from palmette import TreeModel, load_data, load_encoder
from palmette.arrays import as_floats, to_fixed
from palmette.encoder import States
from palmette.encoder.cache import CachedEncoder
from palmette.metrics import score_run
from palmette.search import set_threads
from palmette.search.flat import Block, ExactEngine, top_k

K, ASKED = 10, 200


def routed(model: TreeModel, vectors: np.ndarray, level: int) -> np.ndarray:
    """The nodes of a level in fixed point, as an index keeps them: [n, 2^level] uint16."""
    with torch.inference_mode():
        leaves = to_fixed(model.module(States(torch.from_numpy(vectors))).numpy())
    return leaves.reshape(len(leaves), 2**level, -1).sum(-1, dtype=np.uint16)


def median(ask: Callable[[int], object], count: int) -> float:
    """Milliseconds of processor time of a question."""
    times = []
    for row in range(count):
        begun = time.thread_time()
        ask(row)
        times.append(1000 * (time.thread_time() - begun))
    return float(np.median(times))


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", help="a BEIR folder with a dev split")
    parser.add_argument("--size", type=int, default=1_000_000)
    parser.add_argument("--levels", type=int, nargs="+", default=[6, 7])
    parser.add_argument("--shortlists", type=int, nargs="+", default=[100, 300])
    parser.add_argument("--encoder", default="packaged:all-MiniLM-L6-v2")
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--out", type=Path, default=Path("quality.md"), help="the page")
    args = parser.parse_args(argv)
    set_threads(1)
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    encoder = CachedEncoder(load_encoder(args.encoder), args.cache)
    data = load_data(args.data)
    model = TreeModel.fit(list(data.corpus), encoder=encoder, cache=encoder.cache, progress=False)
    judged = data.split("dev")
    ids = [document.key for document in data.corpus]
    x = encoder.encode([document.content for document in data.corpus])
    q = encoder.encode(list(judged.queries.values()), kind="query")

    def quality(rows: list[np.ndarray]) -> float:
        found = {
            query: [ids[row] for row in ranked] for query, ranked in zip(judged.queries, rows, strict=True)
        }
        return score_run(found, judged.qrels, ks=(K,))["ndcg@10"]

    def adapted(vectors: np.ndarray) -> np.ndarray:
        """Unit vectors in the tree's space."""
        with torch.inference_mode():
            return torch.nn.functional.normalize(model.module.embed(torch.from_numpy(vectors))).numpy()

    exact = quality([np.argsort(-(x @ one), kind="stable")[:K] for one in q])
    big = np.concatenate(list(grown(x, args.size)))
    flat = faiss.IndexFlatIP(x.shape[1])
    flat.add(big)
    count = min(ASKED, len(q))
    theirs = median(lambda row: flat.search(q[row : row + 1], K), min(20, count))
    asked_vectors, halves = adapted(q), adapted(x).astype(np.float16)
    big_halves = np.concatenate([adapted(part) for part in np.array_split(big, 64)]).astype(np.float16)
    print(f"encoder, exact: nDCG@10 {exact:.4f}; {args.size:,} documents: {theirs:.1f} ms a question")
    rows = []
    for level in args.levels:
        asked = np.concatenate(
            [as_floats(routed(model, q[at : at + 256], level)) for at in range(0, len(q), 256)]
        )
        small = as_floats(routed(model, x, level))
        parts = [routed(model, big[at : at + 16_384], level) for at in range(0, len(big), 16_384)]
        block = Block(np.concatenate(parts), np.arange(len(big)))
        for shortlist in args.shortlists:
            ranked = []
            for row in range(len(q)):
                near = np.argsort(-np.minimum(small, asked[row]).sum(1), kind="stable")[:shortlist]
                ranked.append(near[np.argsort(-(halves[near] @ asked_vectors[row]), kind="stable")][:K])

            def ask(row: int, block: Block = block, asked: np.ndarray = asked, many: int = shortlist) -> None:
                found = top_k([(block, None)], asked[row : row + 1], "overlap", many, ExactEngine())
                near = found.keys[0]
                np.argsort(-(big_halves[near] @ asked_vectors[row]), kind="stable")

            median(ask, count)  # columns are built on the way
            ours, share = median(ask, count), quality(ranked) / exact
            cells = [f"{level}", f"{shortlist}", f"{share:.4f}", f"{ours:.2f}", f"{ours / theirs:.3f}"]
            rows.append(cells)
            print(cells, flush=True)
    head = ["level", "shortlist", "nDCG@10, share of the encoder's", "ms", "of the encoder's"]
    write_part(args.out, "rerank", table(head, rows))


if __name__ == "__main__":
    main()
