"""One folder and a Qdrant collection side by side: recall@10 against the folder, milliseconds, bytes per document.

    python benchmarks/qdrant.py --folder /tmp/both                                       # engine in this process
    python benchmarks/qdrant.py --folder /tmp/graphs --ef 32 64 128 256 512              # the same with graphs
    python benchmarks/qdrant.py --folder . --sizes                                       # arithmetic alone

Documents are made: texts of words drawn by Zipf's law, vectors near one of 500 centres, sentences near their document,
sharp distributions. Both sides get the same arrays, and questions are perturbed documents with some of their words.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common import Ready, command_line, shared
from palmette import Document, Index
from palmette.arrays import Ragged, quantise, to_fixed, unit_rows
from palmette.index.write import note_score_scales
from palmette.methods.space import SpaceConfig, SpaceModel
from palmette.ranking.arrays import SENTENCE_SCALES, SENTENCES, SPANS, sentence_arrays
from palmette.search.plan import ArraySpec, Candidates, Lists, Score, SearchPlan
from palmette.store.local.backend import LocalBackend
from palmette_qdrant.backend import QdrantBackend
from recording import table, write_part

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from support import edge  # adds the scheme of the engine in this process

WIDTH, LEAVES, FIELDS, LISTS, SENTENCES_EACH, BATCH = 384, 256, 3, 256, 3, 2000
SPECS = (
    ArraySpec("vector", (WIDTH,), "float16", searched="inner_product"),
    ArraySpec("leaves", (LEAVES,), "uint16", searched="overlap"),
    ArraySpec("fields", (FIELDS, 128), "int8", searched="inner_product", scales="field_scales"),
    ArraySpec("field_scales", (FIELDS,)),
    ArraySpec("lists", (1,), "int32", searched="lists"),
    *sentence_arrays(WIDTH),
)


class Corpus:
    """Documents, their arrays in batches, and questions."""

    def __init__(self, count: int, seed: int = 7) -> None:
        self.count, self.rng = count, np.random.default_rng(seed)
        self.centres = unit_rows(self.rng.standard_normal((500, WIDTH)).astype(np.float32))
        chances = 1 / np.arange(10, 50_010)
        self.chances = np.cumsum(chances / chances.sum())

    def words(self, count: int) -> list[str]:
        drawn = np.searchsorted(self.chances, self.rng.random(count))
        return [f"w{word:x}" for word in drawn.tolist()]

    def near(self, rows: np.ndarray, apart: float) -> np.ndarray:
        noise = self.rng.standard_normal(rows.shape).astype(np.float32) / np.sqrt(rows.shape[1])
        return unit_rows(rows + apart * noise)

    def batches(self) -> Iterator[tuple[list[Document], dict[str, Any]]]:
        for start in range(0, self.count, BATCH):
            n = min(BATCH, self.count - start)
            home = self.rng.integers(len(self.centres), size=n)
            vectors = self.near(self.centres[home], 1.0)
            documents = [
                Document(
                    str(start + row),
                    " ".join(self.words(60)),
                    {"home": int(home[row]), "even": row % 2 == 0, "tenant": row % 100},
                )
                for row in range(n)
            ]
            sentences, scales = quantise(self.near(np.repeat(vectors, SENTENCES_EACH, axis=0), 0.7)[:, None])
            starts = np.arange(n + 1) * SENTENCES_EACH
            spans = np.tile(np.array([[0, 40], [41, 80], [81, 120]], np.int32), (n, 1))
            fields, factors = quantise(
                self.near(np.repeat(vectors[:, None, :128], FIELDS, 1).reshape(-1, 128), 1).reshape(n, FIELDS, 128)
            )
            yield documents, {
                "vector": vectors.astype(np.float16),
                "leaves": self.leaves(vectors),
                "fields": fields, "field_scales": factors,
                "lists": (home[:, None] % LISTS).astype(np.int32),
                SENTENCES: Ragged(sentences[:, 0], starts),
                SENTENCE_SCALES: Ragged(scales[:, 0], starts),
                SPANS: Ragged(spans, starts),
            }  # fmt: skip

    def leaves(self, vectors: np.ndarray) -> np.ndarray:
        logits = 25 * vectors[:, :LEAVES]
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        return to_fixed(shares / shares.sum(axis=1, keepdims=True))


def timed(call: Callable[[Any], Any], given: list[Any], warm: int = 5) -> tuple[list[Any], float]:
    """Results, and the median of milliseconds of CPU time of all threads, which busy neighbours do not stretch."""
    for one in given[:warm]:
        call(one)
    found, took = [], []
    for one in given:
        start = time.process_time()
        found.append(call(one))
        took.append(1000 * (time.process_time() - start))
    return found, float(np.median(took))


def plans(corpus: Corpus, vectors: np.ndarray) -> dict[str, list[SearchPlan]]:
    """Searches by methods, as their plans."""
    leaves = (corpus.leaves(vectors) / np.float32(1 << 15)).astype(np.float32)
    weights, chosen = np.array([1, 0.5, 1], np.float32), corpus.rng.integers(0, LISTS, (len(vectors), 26))
    chosen = np.array([np.unique(row, return_index=True)[0][:20] for row in chosen])
    rows = [vectors[row : row + 1] for row in range(len(vectors))]
    part = [np.ascontiguousarray(row[:, :128]) for row in rows]
    best = [Score("fields", row, part_weights=weights, scales="field_scales") for row in part]
    layers = [np.concatenate([row, corpus.near(row, 0.3), corpus.near(row, 0.3)]) for row in rows]
    return {
        "space, taxonomy": [SearchPlan(Score("vector", row)) for row in rows],
        "layers (3)": [SearchPlan(Score("vector", row), group=3) for row in layers],
        "tree": [SearchPlan(Score("leaves", row[None], "overlap")) for row in leaves],
        "fields, best of 3": [SearchPlan(one) for one in best],
        "fields, rescored": [
            SearchPlan(Score("vector", row), rescore=one, fetch=100, share=0.5)
            for row, one in zip(rows, best, strict=True)
        ],
        "paths, 20 of 256 lists": [
            SearchPlan(Score("vector", row), Lists("lists", own[None])) for row, own in zip(rows, chosen, strict=True)
        ],
    }


def fill(corpus: Corpus, local: LocalBackend, remote: QdrantBackend) -> None:
    """Write the documents to both."""
    for documents, arrays in corpus.batches():
        for backend in (local, remote):
            with backend.write() as writer:
                writer.put(documents, arrays)
    local.compact()


def questions(corpus: Corpus, local: LocalBackend, count: int) -> tuple[list[str], np.ndarray]:
    """Some words of some documents, and vectors near theirs."""
    with local.read() as view:
        keys = np.sort(corpus.rng.choice(view.keys(), count, replace=False)).tolist()
        texts = [document.text.split() for document in view.documents(keys)]
        vectors = view.rows("vector", keys).astype(np.float32)
    return [" ".join(corpus.rng.choice(text, 7).tolist()) for text in texts], corpus.near(vectors, 0.5)


def measure(model: SpaceModel, both: Sequence[Any], plans: dict[str, list[SearchPlan]], asked: list[str]) -> str:
    """A table of searches: of an index as a user calls it, then of the methods' plans."""
    lines = []
    indexes = {id(backend): Index(model, backend) for backend in both}

    def compare(name: str, search: Callable[[Any, Any], list[str]], given: list[Any]) -> None:
        (expected, before), (found, after) = (timed(partial(search, backend), given) for backend in both)
        lines.append([name, f"{before:.1f}", f"{after:.1f}", f"{after / before:.1f}", f"{shared(found, expected):.4f}"])
        print(*lines[-1], flush=True)

    def search(options: dict[str, Any], backend: Any, text: str) -> list[str]:
        return [hit.id for hit in indexes[id(backend)].search(text, 10, **options)]

    def execute(backend: Any, plan: SearchPlan) -> list[str]:
        with backend.read() as view:
            found: Candidates = view.candidates(plan, 10)
            return view.ids(np.unique(found.keys[found.keys >= 0]).tolist())

    for name, options in {
        "default: words and sentences": {}, "the same, filter on half": {"filter": {"even": True}},
        "the same, filter on 1 in 500": {"filter": {"home": 7}}, "meaning alone": {"lexical": 0, "sentences": False},
    }.items():  # fmt: skip
        compare(name, partial(search, options), asked)
    for name, given in plans.items():
        compare(name, execute, given)
    return table(["search", "folder, ms", "engine, ms", "ratio", "recall@10"], lines)


def sizes() -> str:
    """Arithmetic of docs/scale.md: bytes a document, and gigabytes of 10 and 100 million."""
    words, graph, payload = 8 * 250, 1.1 * 2 * 16 * 4, 1.35
    sentences, text = 5 * (384 + 12), 1000 + 300
    rows = []
    for name, numbers, exact in (
        ("space", [384], 2 * 384), ("tree, 1,024 leaves", [1024, 384], 2 * 1024 + 2 * 384),
        ("fields, 3 of 384", [384] * 4, 4 * 384 + 3 * 384 + 24), ("layers", [384], 4 * 384),
        ("paths", [384], 4 * 384 + 4), ("taxonomy", [256], 4 * 256 + 8),
    ):  # fmt: skip
        memory = sum(2 * width + graph for width in numbers) + words
        disk = memory + payload * (exact + sentences + 6 * 250) + text
        cells = [f"{memory / 1e3:.1f} kB", f"{disk / 1e3:.1f} kB"]
        cells += [f"{memory * count / 1e9:,.0f} / {disk * count / 1e9:,.0f} GB" for count in (1e7, 1e8)]
        rows.append([name, *cells])
    return table(["method", "memory a document", "disk a document", "10 million", "100 million"], rows)


def main() -> None:
    parser = command_line(__doc__, "qdrant.md")
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--folder", type=Path, required=True, help="where both are kept, and found by the next run")
    parser.add_argument("--ef", type=int, nargs="*", help="build graphs, and measure them at these depths")
    parser.add_argument("--sizes", action="store_true")
    args = parser.parse_args()
    if args.sizes:
        print(sizes())
        return
    url = f"qdrant+edge://{args.folder}/engine/bench"
    if args.ef:
        edge.GRAPHS = edge.edge.HnswIndexConfig(m=16, ef_construct=100, full_scan_threshold=10_000)
    corpus, encoder = Corpus(args.documents), Ready(WIDTH)
    model = SpaceModel(SpaceConfig(), encoder, torch.nn.Module())
    how: dict[str, Any] = {"fingerprint": model.fingerprint, "language": "english"}
    if not (args.folder / "folder").exists():
        QdrantBackend.create(url, SPECS, **how)
        with LocalBackend.create(args.folder / "folder", SPECS, **how) as local:
            remote = QdrantBackend.open(url)
            fill(corpus, local, remote)
            for backend in (local, remote):
                note_score_scales(model, backend)
            if args.ef:
                remote.db.client.optimize("bench")
            remote.close()
    local = LocalBackend.open(args.folder / "folder", verify=False)
    asked, vectors = questions(corpus, local, args.questions)
    encoder.known = dict(zip(asked, vectors, strict=True))
    tables, asks = [], plans(corpus, vectors)
    for ef in args.ef or [None]:
        remote = QdrantBackend.open(f"{url}?ef={ef}" if ef else url)
        tables.append((f"ef={ef}\n\n" if ef else "") + measure(model, (local, remote), asks, asked))
        remote.close()
    text = "\n\n".join(tables)
    size = local.stats().bytes / args.documents
    taken = sum(f.stat().st_size for f in (args.folder / "engine").rglob("*") if f.is_file()) / args.documents
    told = f"{size:.0f} bytes a document in the folder, {taken:.0f} in the engine's."
    text = f"{args.documents:,} documents, {args.questions} questions, one at a time. {told}\n\n{text}\n"
    print(text)
    write_part(args.out, "graphs" if args.ef else "measured", text)
    local.close()


if __name__ == "__main__":
    main()
