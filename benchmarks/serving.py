"""Throughput and latency by the number of callers, with and without coalescing; what a framework adds to a search.

    python benchmarks/serving.py --out PAGE      # all-MiniLM-L6-v2 on the CPU, under a minute

Callers are threads that ask one question after the other, as the workers of a chatbot's server do. Without
coalescing each question is a forward pass of its own. Frameworks are expected to add less than 1 ms in the median.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any

import numpy as np

import langchain_palmette
import llama_index.retrievers.palmette as llama_palmette
from common import ENCODER, command_line
from palmette import Document, Index, SpaceModel
from palmette.encoder import load_encoder
from recording import append, find, read, table, write_part

WORDS = "how do i open read write sort parse a the file list date json string process thread in python".split()
CALLERS, SECONDS = (1, 8, 16, 32, 64), 2
DOCUMENTS, QUERIES = 1000, 300


def texts(seed: int, count: int) -> list[str]:
    """Texts of 5 to 12 words."""
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(WORDS, size=draw.integers(5, 13))) for _ in range(count)]


def measure(ask: Callable[[list[str]], object], callers: int) -> tuple[float, float]:
    """Questions per second, and the median of a question's milliseconds."""
    latencies: list[float] = []
    start, stop = threading.Barrier(callers + 1), threading.Event()

    def work(seed: int) -> None:
        own = itertools.cycle(texts(seed, 200))
        start.wait()
        while not stop.is_set():
            before = perf_counter()
            ask([next(own)])
            latencies.append(perf_counter() - before)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(callers)]
    for thread in threads:
        thread.start()
    start.wait()
    began = perf_counter()
    sleep(SECONDS)
    stop.set()
    for thread in threads:
        thread.join()
    return len(latencies) / (perf_counter() - began), 1e3 * median(latencies)


def callers_of(store: Path) -> str:
    """One row per number of callers."""
    encoder = load_encoder(ENCODER, device="cpu")
    encoder.encode_queries(texts(0, 200))  # warm
    ways = {"alone": lambda texts: encoder.encode(texts, kind="query"), "coalesced": encoder.encode_queries}
    for callers in CALLERS:
        if not find(store, part="callers", callers=callers):
            found = {name: measure(ask, callers) for name, ask in ways.items()}
            print(append(store, {"part": "callers", "callers": callers, **found}), flush=True)
    lines = [line for line in read(store) if line["part"] == "callers"]
    rows = [[str(x["callers"]), *(" / ".join(f"{v:.3g}" for v in x[name]) for name in ways)] for x in lines]
    return table(["callers", *ways], rows)


class Timed(Index):
    """An index that notes the seconds of its last search."""

    seconds = 0.0

    def search(self, *args: Any, **how: Any) -> Any:
        begun = perf_counter()
        found = super().search(*args, **how)
        self.seconds = perf_counter() - begun
        return found


def overhead(index: Timed, ask: Callable[[str], Any], queries: Sequence[str]) -> float:
    """Milliseconds that a query takes beside the search, in the median."""
    added = []
    for query in queries:
        begun = perf_counter()
        assert len(ask(query)) == 5
        added.append(perf_counter() - begun - index.seconds)
    return round(1e3 * median(added), 3)


def adapters(store: Path) -> str:
    """One row per framework and way to call it."""
    index = Timed.in_memory(SpaceModel.untrained("fake:384"))
    index.add([Document(str(i), f"{text} {i}", {"house": i % 7}) for i, text in enumerate(texts(0, DOCUMENTS))])
    queries = texts(1, QUERIES)
    chain = langchain_palmette.PalmetteRetriever.from_index(index, k=5)
    nodes = llama_palmette.PalmetteRetriever(index, similarity_top_k=5)
    with asyncio.Runner() as loop:
        for name, ask in (
            ("LangChain", chain.invoke),
            ("LangChain, async", lambda query: loop.run(chain.ainvoke(query))),
            ("LlamaIndex", nodes.retrieve),
            ("LlamaIndex, async", lambda query: loop.run(nodes.aretrieve(query))),
        ):
            if not find(store, part="adapters", framework=name):
                overhead(index, ask, queries[:20])
                line = {"part": "adapters", "framework": name, "adapter": overhead(index, ask, queries)}
                print(append(store, line), flush=True)
    rows = [[x["framework"], f"{x['adapter']:.2f}"] for x in read(store) if x["part"] == "adapters"]
    return table(["added to a query, median", "ms"], rows)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure what is missing, then write what there is."""
    out = command_line(__doc__, "speed.md").parse_args(argv).out
    logging.disable(logging.WARNING)
    write_part(out, "callers", callers_of(out.with_suffix(".jsonl")))
    write_part(out, "adapters", adapters(out.with_suffix(".jsonl")))


if __name__ == "__main__":
    main()
