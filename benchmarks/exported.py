"""What an ONNX export keeps of an encoder, and what it spares.

    PALMETTE_DATA=FOLDER python benchmarks/exported.py quality [NAME ...]
    python benchmarks/exported.py time

*quality*: nDCG@10 of up to 300 test questions that the exports read, over documents that torch has read (vectors of
documents and sentences from ``FOLDER/encodings``). *time*: milliseconds of processor time a question in a warm process,
and processor time and memory of one ``palmette search`` in a process of its own.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from common import ENCODER, command_line, parse_with_data
from curve import Recorded
from palmette import Encoder, Index, load_data, load_encoder, sample_data
from palmette.data.metrics import score_run
from palmette.encoder.onnx.export import export_onnx
from recording import table

SETS = ("squad", "scifact", "fairytaleqa", "cosqa", "hotpot_mini")
QUESTIONS = 300
"""Test questions of a collection."""
WAYS: dict[str, dict[str, Any]] = {"vector": {"lexical": 0, "sentences": False}, "default": {}}
"""Searches that are measured."""
ASKED = (
    "how do I copy a folder?",
    "what is a context manager?",
    "read a file line by line",
    "which module parses JSON?",
)
RUNS = 7
"""Cold commands of a row, of which the median counts."""


class ReadBy(Recorded):
    """Recorded vectors of documents, and questions that one of several encoders reads."""

    reader: Encoder

    def encode_queries(self, texts: Sequence[str]) -> Any:
        """Return the vectors of questions by the chosen encoder."""
        return self.reader.encode_queries(texts)


def encoders(folder: Path) -> dict[str, Encoder]:
    """torch, and its exports in float32 and in eight bits."""
    names = {"torch": ENCODER}
    for precision in ("float32", "int8"):
        export_onnx(ENCODER, folder / precision, int8=precision == "int8")
        names[f"ONNX {precision}"] = f"onnx:{folder / precision}"
    return {name: load_encoder(place, device="cpu", dtype="float32") for name, place in names.items()}


def quality(data: Path, names: Sequence[str], folder: Path) -> str:
    """nDCG@10 by collection, search and encoder of the questions."""
    readers, rows, lost = encoders(folder), list[list[str]](), list[float]()
    for name in names:
        loaded = load_data(data / name, dev_fraction=0.0)
        encoder = ReadBy(loaded, np.load(data / "encodings" / f"{name}.npz"))
        encoder.reader = readers["torch"]
        test = dict(list(loaded.qrels["test"].items())[:QUESTIONS])
        texts = [loaded.queries[query] for query in test]
        row = [f"{name} ({len(test)})"]
        with Index.build(loaded.corpus, encoder=encoder, passages=None, progress=False) as index:
            for way in WAYS.values():
                found = {}
                for kind, reader in readers.items():
                    encoder.reader = reader
                    run = dict(zip(test, index.rank(texts, 10, **way).ids, strict=True))
                    found[kind] = score_run(run, test, ks=(10,))["ndcg@10"]
                row += [f"{value:.4f}".lstrip("0") for value in found.values()]
                lost.append(found["ONNX int8"] - found["torch"])
        rows.append(row)
        print(row, file=sys.stderr, flush=True)
    means = [f"{np.mean([float(row[at]) for row in rows]):.4f}".lstrip("0") for at in range(1, len(rows[0]))]
    head = ["questions read by", *(f"{way}: {kind}" for way in WAYS for kind in readers)]
    shown = f"int8 less torch: {min(lost):+.4f} to {max(lost):+.4f}"
    return f"{table(head, [*rows, ['mean', *means]])}\n\n{shown}"


def warm(encoder: Encoder) -> float:
    """Milliseconds of processor time a question: the least of five rounds."""
    encoder.encode_queries([ASKED[0]])
    rounds = []
    for _ in range(5):
        begun = time.process_time()
        for _ in range(25):
            for question in ASKED:
                encoder.encode_queries([question])
        rounds.append((time.process_time() - begun) / (25 * len(ASKED)) * 1000)
    return min(rounds)


def cold(index: Path, *words: str) -> tuple[float, float]:
    """Seconds of processor time, and megabytes, of one ``palmette search``: medians."""
    script = (
        "import re, sys\nfrom palmette.cli import main\nmain()\n"  # getrusage tells of the parent's memory, too
        "print(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1], file=sys.stderr)"
    )
    seconds, sizes = [], []
    for asked in (*ASKED, *ASKED)[:RUNS]:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-c", script, "search", str(index), asked, "-k", "3", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        sizes.append(int(done.stderr.split()[-1]) / 1024)
    return float(np.median(seconds)), float(np.median(sizes))


def times(folder: Path) -> str:
    """Warm questions, and cold commands."""
    import torch

    readers = encoders(folder)
    torch.set_num_threads(1)
    data = sample_data()
    index = folder / "index"
    with Index.create(index, encoder=readers["torch"]) as made:
        made.add(data.corpus[:200], progress=False)
    rows = []
    for name, reader in readers.items():
        words = [] if name == "torch" else ["--encoder", reader.name]
        seconds, size = cold(index, *words)
        rows.append([name, f"{warm(reader):.1f}", f"{seconds:.2f}", f"{size:.0f}"])
    head = ["", "a question, ms", "cold `palmette search`, s of processor time", "MB"]
    return table(head, rows)


def main(argv: Sequence[str] | None = None) -> None:
    """Print one of the tables."""
    parser = command_line(__doc__, "benchmarks/results/onnx.md")
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
