"""Queries of all layers beside the encoder's one query: what is found by documents visited, and what encoding costs.

    python benchmarks/layers.py DATA [DATA …] --out benchmarks/results/layers.md

DATA are BEIR folders. Documents are the encoder's own vectors in FAISS's inverted lists, in a graph, and in a flat
index; *accuracy* is the share of test questions with a relevant document among the best twelve.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from common import ENCODER, Floats, command_line, graph, inverted_lists, number, questions
from palmette import LayersModel, RetrievalData, load_data, load_encoder
from palmette.data.metrics import Judgements, query_scores
from palmette.encoder.cache import EncodingCache
from palmette.encoder.space import SpaceEncoder
from palmette.training.pairs import TrainingPairs
from palmette.training.space import fit_space
from recording import append, find, read, table, write_part

K, DEEP, LISTS = 12, 60, 128
EFFORTS = {"lists": (1, 2, 4, 8, 16, 32), "graph": (4, 8, 16, 32, 64)}
"""Lists, or a graph's ``efSearch``, of every query vector."""


def few(data: RetrievalData, train: int, dev: int = 200) -> RetrievalData:
    """The same documents with fewer questions to learn from."""
    draw, qrels = np.random.default_rng(0), dict(data.qrels)
    for split, most in (("train", train), ("dev", dev)):
        names = list(qrels[split])
        qrels[split] = {names[at]: qrels[split][names[at]] for at in draw.permutation(len(names))[:most]}
    asked = {query for judged in qrels.values() for query in judged}
    return replace(data, queries={id: text for id, text in data.queries.items() if id in asked}, qrels=qrels)


def visits(index: Any, documents: Floats, queries: Floats, effort: int) -> tuple[list[set[int]], float]:
    """Documents that the vectors [Q, L, d] of each question visit together, and how many that is on average."""
    if isinstance(index, faiss.IndexIVF):
        lists = index.quantizer.search(documents, 1)[1][:, 0]
        chosen = [index.quantizer.search(row, effort)[1] for row in queries]
        found = [set(np.flatnonzero(np.isin(lists, some)).tolist()) for some in chosen]
        return found, float(np.mean([len(some) for some in found]))
    index.hnsw.efSearch = effort
    faiss.cvar.hnsw_stats.reset()
    found = [set(index.search(row, effort)[1].ravel().tolist()) - {-1} for row in queries]
    return found, faiss.cvar.hnsw_stats.ndis / len(queries)


def scored(
    queries: Floats, documents: Floats, inside: Sequence[set[int]] | None, truth: Judgements
) -> tuple[float, float]:
    """Accuracy at 12 and recall at 60 of [Q, d] among the visited documents (all by default)."""
    found = np.full((len(queries), DEEP), -1)
    for row, query in enumerate(queries):
        rows = np.arange(len(documents)) if inside is None else np.array(sorted(inside[row]), np.int64)
        best = rows[np.argsort(-(documents[rows] @ query), kind="stable")[:DEEP]]
        found[row, : len(best)] = best
    values = query_scores(found, truth, ks=(K, DEEP))
    return float((values[f"recall@{K}"] > 0).mean()), float(values[f"recall@{DEEP}"].mean())


def rows_of(
    vectors: dict[str, tuple[Floats, Floats]], documents: Floats, truth: Judgements
) -> Iterator[tuple[str, str, int, float, float, float]]:
    """Index, system, effort, documents visited, accuracy, recall of query vectors [Q, L, d]; [Q, d] rank."""
    for kind, index in (("lists", inverted_lists(documents, LISTS)), ("graph", graph(documents))):
        for name, (asked, ranking) in vectors.items():
            for effort in EFFORTS[kind]:
                inside, seen = visits(index, documents, asked, effort)
                yield kind, name, effort, seen, *scored(ranking, documents, inside, truth)
    for name, (_, ranking) in vectors.items():
        yield "flat", name, 0, len(documents), *scored(ranking, documents, None, truth)


def measure(folder: str, args: argparse.Namespace) -> dict[str, Any]:
    """Everything of one data set."""
    cache, encoder = EncodingCache(), load_encoder(ENCODER)
    data = few(load_data(folder), args.train)
    texts, truth = questions(data, args.queries)
    documents = cache.encode(encoder, [d.content for d in data.corpus], kind="document")
    own = cache.encode(encoder, texts, kind="query")
    model = LayersModel.fit(data, encoder=encoder, cache=cache, progress=False)

    def timed(work: Callable[[], Any]) -> tuple[Any, float]:
        begun = time.process_time()
        return work(), 1000 * (time.process_time() - begun) / len(texts)

    def encoded(**options: Any) -> tuple[Any, float]:
        return timed(lambda: model.encode_queries(texts, model.search_options(options)))

    seconds = {"one vector": timed(lambda: encoder.encode_queries(texts))[1]}
    arrays, seconds["all layers"] = encoded()
    layers, fused = arrays["layers"], arrays["fused"]
    for layer in (1, 3):
        arrays, seconds[f"layer {layer}"] = encoded(layers=(layer,))
        seconds[f"layer {layer}, flat accuracy"] = scored(arrays["fused"], documents, None, truth)[0]
    vectors = {
        "encoder": (own[:, None], own),
        "fused, one query": (fused[:, None], fused),
        "all layers": (layers, fused),
    }
    found = list(rows_of(vectors, documents, truth))
    space, _ = fit_space(TrainingPairs.encode(data, encoder, cache, progress=False), progress=False)
    if space is not None:
        both = SpaceEncoder(encoder, space)
        asked = both.map(own, "query")
        found += rows_of({"space": (asked[:, None], asked)}, both.map(documents, "document"), truth)
    return {"data": Path(folder).name, "documents": len(documents), "rows": found, "seconds": seconds}


def report(lines: Sequence[dict[str, Any]]) -> str:
    """A table of each data set."""
    head = ["index, queries", "lists or efSearch each", "visited", f"accuracy@{K}", f"R@{DEEP}"]
    parts = []
    for line in lines:
        cells = [
            [f"{kind}, {name}", str(effort or ""), f"{seen:,.0f}", number(accuracy), number(recall)]
            for kind, name, effort, seen, accuracy, recall in line["rows"]
        ]
        cost = ", ".join(f"{name} {value:.3g}" for name, value in line["seconds"].items())
        parts.append(
            f"### {line['data']}, {line['documents']:,} documents\n\n{table(head, cells)}\n\n"
            f"Processor milliseconds to encode a question: {cost}."
        )
    return "\n\n".join(parts)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure what is missing, then write what there is."""
    parser = command_line(__doc__, "layers.md")
    parser.add_argument("data", nargs="*", help="BEIR folders")
    parser.add_argument("--queries", type=int, default=300, help="of test, at most")
    parser.add_argument("--train", type=int, default=1500, help="training questions, at most")
    args = parser.parse_args(argv)
    store = args.out.with_suffix(".jsonl")
    for folder in args.data:
        if not find(store, data=Path(folder).name):
            append(store, measure(folder, args))
    write_part(args.out, "layers", report(read(store)))


if __name__ == "__main__":
    main()
