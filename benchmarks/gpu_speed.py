"""Encoding beside sentence-transformers, and exact search beside FAISS and torch, on the device at hand.

    PALMETTE_DATA=FOLDER python benchmarks/gpu_speed.py --encoder FOLDER --out speed.md

PALMETTE_DATA has BEIR folders; the first one's documents are encoded (without it, the standard library's).
Every part is a table of the page, and a failure is a line of it: the other parts go on.
"""

from __future__ import annotations

import argparse
import os
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from palmette import load_data, load_encoder
from palmette.machine.devices import auto_precision, check_device
from palmette.sample import sample_data
from palmette.search.faiss_engine import engine_named
from palmette.search.flat import as_block, top_k
from recording import table, write_part

K = 10
BATCHES = (1, 8, 64, 512)
WIDTH = 384


def seconds(work: Callable[[], Any], repeats: int = 3) -> float:
    """Least clock time of several runs, the device's queue drained."""

    def once() -> float:
        begin = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    once()
    return min(once() for _ in range(repeats))


def encoding(encoder_name: str, texts: Sequence[str], questions: Sequence[str], device: str | None) -> list[list[str]]:
    """Documents a second and milliseconds a question, by library, precision and batch."""
    from sentence_transformers import SentenceTransformer

    rows, where = [], check_device(device)
    fast = auto_precision(where)
    for precision in dict.fromkeys(("float32", fast)):
        model = SentenceTransformer(
            encoder_name, device=str(where), model_kwargs={"dtype": getattr(torch, precision)}, local_files_only=True
        )
        for batch in (32, 256):
            rate = len(texts) / seconds(lambda m=model, b=batch: m.encode(list(texts), batch_size=b), 1)
            one = seconds(lambda m=model: [m.encode(q) for q in questions[:50]], 1) / 50
            rows.append(["sentence-transformers", precision, str(batch), f"{rate:,.0f}", "", f"{1e3 * one:.2f}"])
            print(rows[-1], flush=True)
    for precision in dict.fromkeys(("float32", fast)):
        for batch in (32, 256):
            encoder = load_encoder(encoder_name, device=device, dtype=precision, batch_size=batch)
            rate = len(texts) / seconds(lambda e=encoder: e.encode(texts), 1)
            whole = len(texts) / seconds(lambda e=encoder: e.encode_sentences(texts), 1)
            one = seconds(lambda e=encoder: [e.encode_queries([q]) for q in questions[:50]], 1) / 50
            rows.append(["palmette", precision, str(batch), f"{rate:,.0f}", f"{whole:,.0f}", f"{1e3 * one:.2f}"])
            print(rows[-1], flush=True)
    return rows


def clustered(count: int, seed: int) -> np.ndarray:
    """Unit vectors around a thousand centres, as texts' vectors lie."""
    draw = np.random.default_rng(seed)
    centres = np.random.default_rng(0).standard_normal((1000, WIDTH)).astype(np.float32)
    vectors = np.empty((count, WIDTH), np.float32)
    for start in range(0, count, 50_000):
        end = min(start + 50_000, count)
        noise = draw.standard_normal((end - start, WIDTH), dtype=np.float32)
        vectors[start:end] = centres[draw.integers(0, 1000, end - start)] + 1.2 * noise
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def searching(count: int) -> list[list[str]]:
    """Milliseconds a question by engine and batch, and the share of the exact ten that were found."""
    vectors, queries = clustered(count, 1), clustered(BATCHES[-1], 2)
    stored = vectors.astype(np.float16)
    rows: list[list[str]] = []
    exact: np.ndarray | None = None

    def measure(label: str, ask: Callable[[np.ndarray], np.ndarray]) -> None:
        nonlocal exact
        begin = time.perf_counter()
        found = ask(queries)
        build = time.perf_counter() - begin
        exact = found if exact is None else exact
        recall = np.mean([len({*a} & {*b}) / K for a, b in zip(found, exact, strict=True)])
        times = [1e3 * seconds(lambda n=n: ask(queries[:n])) / n for n in BATCHES]
        rows.append([label, *(f"{ms:.3f}" for ms in times), f"{build:.2f}", f"{recall:.4f}"])
        print(rows[-1], flush=True)

    def palmette(name: str) -> Callable[[np.ndarray], np.ndarray]:
        block, engine = as_block(stored, np.arange(count), 1), engine_named(name)
        return lambda some: top_k([(block, None)], some, "inner_product", K, engine).keys

    def faiss_flat(gpu: bool) -> Callable[[np.ndarray], np.ndarray]:
        import faiss

        index: Any = faiss.IndexFlatIP(WIDTH)
        index.add(stored.astype(np.float32))
        index = faiss.index_cpu_to_all_gpus(index) if gpu else index
        return lambda some: index.search(some, K)[1]

    def by_torch(dtype: torch.dtype) -> Callable[[np.ndarray], np.ndarray]:
        held = torch.from_numpy(stored).to(check_device(None), dtype)

        def ask(some: np.ndarray) -> np.ndarray:
            scores = torch.from_numpy(some).to(held.device, dtype) @ held.T
            return scores.topk(K, dim=1).indices.cpu().numpy()

        return ask

    ways: dict[str, Callable[[], Callable[[np.ndarray], np.ndarray]]] = {
        "palmette, exact": lambda: palmette("exact"),
        "palmette, faiss": lambda: palmette("faiss"),
        "palmette, ivf": lambda: palmette("ivf"),
        "FAISS flat float32, processor": lambda: faiss_flat(False),
        "FAISS flat float32, GPU": lambda: faiss_flat(True),
        "torch float32 and topk": lambda: by_torch(torch.float32),
        "torch float16 and topk": lambda: by_torch(torch.float16),
    }
    for label, make in ways.items():
        try:
            measure(label, make())
        except Exception as error:
            rows.append([label, *[""] * 5, f"{type(error).__name__}: {str(error)[:80]}"])
            traceback.print_exc()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", default="sentence-transformers/all-MiniLM-L6-v2")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default=None)
    parser.add_argument("--part", choices=("encoding", "search", "all"), default="all")
    parser.add_argument("--sizes", type=int, nargs="*", default=[100_000, 1_000_000])
    parser.add_argument("--documents", type=int, default=2000)
    args = parser.parse_args()
    device = check_device(args.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    title = f"{name}, torch {torch.__version__}, {os.cpu_count()} cores, {auto_precision(device)}."
    if args.part != "search":
        folders = sorted(Path(os.environ["PALMETTE_DATA"]).iterdir()) if "PALMETTE_DATA" in os.environ else []
        data = load_data(folders[0]) if folders else sample_data()
        texts = [document.content for document in data.corpus][: args.documents]
        head = ["encoder", "precision", "batch", "documents a second", "with sentences", "one question, ms"]
        rows = encoding(args.encoder, texts, list(data.queries.values()), args.device)
        write_part(args.out, "encoding", f"{title} {len(texts):,} documents of {data.name}.\n\n{table(head, rows)}")
        print(table(head, rows), flush=True)
    for size in args.sizes if args.part != "encoding" else ():
        head = ["search", *(f"batch {batch}" for batch in BATCHES), "build, s", "recall@10"]
        rows = searching(size)
        text = f"{title} {size:,} vectors of {WIDTH} columns, milliseconds a question.\n\n{table(head, rows)}"
        write_part(args.out, f"search {size}", text)
        print(text, flush=True)


if __name__ == "__main__":
    main()
