"""What several benchmarks need: their command line, judged questions, encoders with ready vectors, FAISS's lists."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch
from numpy.typing import NDArray

from palmette import FakeEncoder, RetrievalData
from palmette.data.metrics import Judgements
from palmette.encoder import States
from palmette.encoder.sentences import Sentences

Floats = NDArray[np.float32]
ENCODER = "packaged:all-MiniLM-L6-v2"


def command_line(doc: str | None, page: str) -> argparse.ArgumentParser:
    """A parser with the module's docstring as its help, and ``--out``."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(page), help="the page; results lie beside it")
    return parser


def parse_with_data(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Arguments, with the folder of all data sets."""
    parser.add_argument("--data", type=Path, default=os.environ.get("PALMETTE_DATA"))
    args = parser.parse_args(argv)
    if args.data is None:
        parser.error("name the folder of data sets: PALMETTE_DATA=FOLDER or --data FOLDER")
    args.data = Path(args.data)
    return args


def number(value: float) -> str:
    """.812, or –.004."""
    return f"{value:.3f}".replace("0.", ".", 1).replace("-", "–")


def sampled(data: RetrievalData, split: str, known: Mapping[str, Any], most: int) -> list[str]:
    """Draw questions of a split at random that have a vector."""
    queries = [query for query in data.qrels[split] if data.queries[query] in known]
    return [queries[row] for row in np.random.default_rng(0).permutation(len(queries))[:most].tolist()]


def spread(values: Sequence[float]) -> str:
    """Mean, with the standard deviation of several seeds."""
    if not values:
        return ""
    return number(float(np.mean(values))) + (f" ± {number(float(np.std(values)))}" if len(values) > 1 else "")


def questions(data: RetrievalData, most: int) -> tuple[list[str], Judgements]:
    """Test questions at random, and their judgements."""
    rows, _ = data.judgements("test")
    rows = np.sort(np.random.default_rng(0).permutation(rows)[:most])
    names = list(data.queries)
    judged = [data.qrels["test"][names[row]] for row in rows.tolist()]
    return [data.query_texts[row] for row in rows.tolist()], Judgements.of_queries(judged, data.rows, len(data.corpus))


def inverted_lists(vectors: Floats, lists: int, seed: int = 1234, rounds: int = 10) -> Any:
    """FAISS's inverted lists over these vectors."""
    width = vectors.shape[1]
    made: Any = faiss.IndexIVFFlat(faiss.IndexFlatIP(width), width, lists, faiss.METRIC_INNER_PRODUCT)
    made.cp.seed, made.cp.niter, made.cp.min_points_per_centroid = seed, rounds, 1
    made.train(vectors)
    made.add(vectors)
    return made


def graph(vectors: Floats) -> Any:
    """FAISS's graph of 32 links over these vectors."""
    made: Any = faiss.IndexHNSWFlat(vectors.shape[1], 32, faiss.METRIC_INNER_PRODUCT)
    made.add(vectors)
    return made


def shared(found: Any, exact: Any) -> float:
    """Share of the expected results that were found, of rows of both."""
    return float(np.mean([len({*a} & {*b}) / max(1, len(b)) for a, b in zip(found, exact, strict=True)]))


class Ready(FakeEncoder):
    """An encoder that looks vectors up by their texts."""

    def __init__(self, width: int, known: dict[str, Any] | None = None) -> None:
        super().__init__(width, max_length=1 << 20)
        self.name, self.known = "ready/all-MiniLM-L6-v2", dict(known or {})

    def encode(self, texts: Sequence[str], **_: Any) -> Floats:
        return np.stack([self.known[text] for text in texts]).astype(np.float32)

    encode_queries = encode

    def encode_sentences(self, texts: Sequence[str], **_: Any) -> tuple[Floats, Sentences]:
        nothing = np.zeros((0, self.dimension), np.int8), np.zeros(0, np.float32), np.zeros((0, 2), np.int32)
        return self.encode(texts), Sentences(*nothing, np.zeros(len(texts) + 1, np.int64))

    def forward(self, texts: Sequence[str], *_: Any, **__: Any) -> States:
        return States(torch.from_numpy(self.encode(texts)))
