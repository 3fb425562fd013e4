"""What the default encoder gives by ONNX Runtime, in float32 and in eight bits, beside torch: ranks and seconds.

    PALMETTE_DATA=FOLDER python benchmarks/light.py quality [NAME ...]
    taskset -c 0 python benchmarks/light.py time

*quality*: nDCG@10, where each engine reads documents and questions: up to 300 test questions, over their judged
documents and others at random, 800 in all. *time*: seconds of processor time for 1,000 short documents, of 300
characters at most, on the processors that ``taskset`` leaves: entries of the standard library's documentation.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from common import ENCODER, command_line, parse_with_data
from palmette import Encoder, Index, load_data, load_encoder, sample_data
from palmette.data.metrics import score_run
from palmette.encoder.onnx.export import export_onnx
from recording import table

SETS = ("scifact", "cosqa", "fairytaleqa", "hotpot_mini", "medquad")
QUESTIONS, DOCUMENTS = 300, 800
SHORT, MANY = 300, 1000
"""Characters of a short document, and how many are timed."""
WAYS: dict[str, dict[str, Any]] = {"default": {}, "vector": {"lexical": 0, "sentences": False}}


def engines(folder: Path) -> dict[str, Encoder]:
    """torch in float32; ONNX Runtime from the same weights; the graph in eight bits."""
    export_onnx(ENCODER, folder / "int8", int8=True)
    places: dict[str, tuple[str, dict[str, Any]]] = {
        "torch": (ENCODER, {"device": "cpu", "dtype": "float32"}),
        "ONNX float32": (ENCODER, {"device": "cpu"}),
        "ONNX int8": (f"onnx:{folder / 'int8'}", {}),
    }
    loaded = {name: load_encoder(place, **options) for name, (place, options) in places.items()}
    assert type(loaded["torch"]) is not type(loaded["ONNX float32"])
    return loaded


def quality(data: Path, names: Sequence[str], folder: Path) -> str:
    """nDCG@10 by collection and engine."""
    encoders, rows = engines(folder), list[list[str]]()
    for name in names:
        loaded = load_data(data / name, dev_fraction=0.0)
        test = dict(list(loaded.qrels["test"].items())[:QUESTIONS])
        judged = {id for judgements in test.values() for id in judgements}
        order = np.random.default_rng(0).permutation(len(loaded.corpus)).tolist()
        others = [loaded.corpus[row] for row in order if loaded.corpus[row].key not in judged]
        corpus = [document for document in loaded.corpus if document.key in judged]
        corpus += others[: max(0, DOCUMENTS - len(corpus))]
        texts, found = [loaded.queries[query] for query in test], dict[str, list[str]]()
        for encoder in encoders.values():
            with Index.build(corpus, encoder=encoder, passages=None, progress=False) as index:
                for way, options in WAYS.items():
                    run = dict(zip(test, index.rank(texts, 10, **options).ids, strict=True))
                    score = score_run(run, test, ks=(10,))["ndcg@10"]
                    found.setdefault(way, []).append(f"{score:.4f}".lstrip("0"))
        row = [f"{name} ({len(test)} over {len(corpus)})", *(score for scores in found.values() for score in scores)]
        print(row, file=sys.stderr, flush=True)
        rows.append(row)
    return table(["", *(f"{way}: {engine}" for way in WAYS for engine in encoders)], rows)


def times(folder: Path) -> str:
    """Seconds of processor time for short documents, with the vectors of their sentences: the least of three."""
    texts = [document.content[:SHORT] for document in sample_data().corpus if document.content]
    texts = (texts * (MANY // len(texts) + 1))[:MANY]
    rows = []
    for name, encoder in engines(folder).items():
        encoder.encode_sentences(texts[:8])
        rounds = []
        for _ in range(3):
            begun = time.process_time()
            encoder.encode_sentences(texts)
            rounds.append(time.process_time() - begun)
        rows.append([name, f"{min(rounds):.1f}"])
    return table(["", "1,000 documents, s"], rows)


def main(argv: Sequence[str] | None = None) -> None:
    """Print one of the tables."""
    parser = command_line(__doc__, "benchmarks/results/light.md")
    parser.add_argument("what", choices=["quality", "time"])
    parser.add_argument("names", nargs="*", help="collections; all by default")
    with TemporaryDirectory() as folder:
        known: argparse.Namespace = parser.parse_known_args(argv)[0]
        if known.what == "time":
            print(times(Path(folder)))
            return
        args = parse_with_data(parser, argv)
        print(quality(args.data, args.names or SETS, Path(folder)))


if __name__ == "__main__":
    main()
