"""What a framework costs per query, apart from the engine: expected under 1 ms in the median.

    python tests/benchmarks/adapter_overhead.py [--documents 1000] [--queries 300] [--encoder fake:384]

A query takes encoding, the rest of ``Index.search`` (filters, ranking, fetching documents), and
the adapter: what the framework and its adapter add around that.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from recording import append, read, table, write_part

from palmette import Document, Index, TreeModel

PARTS = ("encoding", "search", "adapter", "total")
WORDS = ("red", "green", "blue", "owl", "fox", "cat", "house", "night", "river", "stone", "sings", "sleeps")


class Clock:
    """Seconds spent in the parts of the current query."""

    def __init__(self) -> None:
        self.spent = {"encoding": 0.0, "search": 0.0}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add the time of a block."""
        start = perf_counter()
        try:
            yield
        finally:
            self.spent[name] += perf_counter() - start

    def wrap(self, owner: object, method: str, name: str) -> None:
        """Time a method of an object or a class."""
        inner: Callable[..., Any] = getattr(owner, method)

        def timed(*args: Any, **how: Any) -> Any:
            with self.part(name):
                return inner(*args, **how)

        setattr(owner, method, timed)

    def take(self, total: float) -> dict[str, float]:
        """Milliseconds of the query that ends now, by part."""
        encoding, search = (1e3 * self.spent[name] for name in ("encoding", "search"))
        self.spent = dict.fromkeys(self.spent, 0.0)
        rest = {"encoding": encoding, "search": search - encoding, "adapter": 1e3 * total - search}
        return rest | {"total": 1e3 * total}


def texts(count: int) -> list[str]:
    """Short texts, all different."""
    return [
        " ".join(WORDS[(i * step + step) % len(WORDS)] for step in (1, 3, 5, 7, 11)) + f" {i}"
        for i in range(count)
    ]


def build(documents: int, encoder: str, clock: Clock) -> Index:
    """An index in memory whose parts are timed."""
    corpus = texts(documents)
    pairs = [(text.upper(), text) for text in corpus[:64]]
    model = TreeModel.fit(
        pairs, encoder=encoder, depth=10, steps=1, batch_size=16, progress=False, device="cpu"
    )
    index = Index.in_memory(model)
    index.add([Document(id=str(i), text=text, metadata={"house": i % 7}) for i, text in enumerate(corpus)])
    clock.wrap(index.model, "encode_queries", "encoding")
    clock.wrap(Index, "search", "search")
    return index


def retrievers(index: Index) -> dict[str, tuple[Callable[[str], Any], Callable[[str], Any]]]:
    """By framework: how to ask, and how to ask asynchronously."""
    found: dict[str, tuple[Callable[[str], Any], Callable[[str], Any]]] = {}
    if find_spec("langchain_core"):
        chain = import_module("langchain_palmette").TreeRetriever.from_index(index, k=5)
        found["LangChain"] = (chain.invoke, chain.ainvoke)
    if find_spec("llama_index.core"):
        nodes = import_module("llama_index.retrievers.palmette").TreeRetriever.from_index(
            index, similarity_top_k=5
        )
        found["LlamaIndex"] = (nodes.retrieve, nodes.aretrieve)
    return found


def measure(ask: Callable[[str], Any], queries: list[str], clock: Clock) -> list[dict[str, float]]:
    """The parts of each query."""
    rows = []
    for query in queries:
        start = perf_counter()
        assert len(ask(query)) == 5
        rows.append(clock.take(perf_counter() - start))
    return rows


async def ameasure(ask: Callable[[str], Any], queries: list[str], clock: Clock) -> list[dict[str, float]]:
    """The parts of each query, asked one after the other in one event loop."""
    rows = []
    for query in queries:
        start = perf_counter()
        assert len(await ask(query)) == 5
        rows.append(clock.take(perf_counter() - start))
    return rows


def medians(rows: list[dict[str, float]]) -> dict[str, float]:
    """Milliseconds by part."""
    return {part: round(median(row[part] for row in rows), 3) for part in PARTS}


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=1000)
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--encoder", default="fake:384")
    parser.add_argument("--out", type=Path, default=Path("speed.md"), help="the page; lines lie beside it")
    args = parser.parse_args(argv)
    logging.disable(logging.WARNING)
    clock = Clock()
    index = build(args.documents, args.encoder, clock)
    queries = [f"where does the {text} live?" for text in texts(args.queries)]
    store = args.out.with_suffix(".jsonl")
    found = {
        "Index.search": medians(
            measure(lambda query: index.search(query, k=5, lexical=0, sentences=False), queries, clock)
        )
    }
    for name, (ask, aask) in retrievers(index).items():
        measure(ask, queries[:20], clock)
        found[name] = medians(measure(ask, queries, clock))
        found[f"{name}, async"] = medians(asyncio.run(ameasure(aask, queries, clock)))
    for name, ms in found.items():
        print(append(store, {"part": "adapters", "framework": name, **ms}))
    lines = [x for x in read(store, "part", "framework") if x.get("part") == "adapters"]
    rows = [[x["framework"], f"{x['adapter']:.2f}"] for x in lines if x["framework"] != "Index.search"]
    write_part(args.out, "adapters", table(["added to a query, median", "ms"], rows))


if __name__ == "__main__":
    main()
