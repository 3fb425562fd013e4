"""What a framework and its adapter add to ``Index.search``: expected under 1 ms a query in the median.

python tests/benchmarks/adapter_overhead.py --out PAGE
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import Any

from common import command_line
from recording import append, find, read, table, write_part

import langchain_palmette
import llama_index.retrievers.palmette as llama_palmette
from palmette import Document, Index
from palmette.methods.space import SpaceModel

WORDS = ("red", "green", "blue", "owl", "fox", "cat", "house", "night", "river", "stone", "sings", "sleeps")
DOCUMENTS, QUERIES = 1000, 300


def texts(count: int) -> list[str]:
    """Short texts, all different."""
    steps = (1, 3, 5, 7, 11)
    return [" ".join(WORDS[(i * step + step) % len(WORDS)] for step in steps) + f" {i}" for i in range(count)]


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


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and write the table."""
    args = command_line(__doc__, "speed.md").parse_args(argv)
    logging.disable(logging.WARNING)
    index, store = Timed.in_memory(SpaceModel.untrained("fake:384")), args.out.with_suffix(".jsonl")
    index.add([Document(str(i), text, {"house": i % 7}) for i, text in enumerate(texts(DOCUMENTS))])
    queries = [f"where does the {text} live?" for text in texts(QUERIES)]
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
    write_part(args.out, "adapters", table(["added to a query, median", "ms"], rows))


if __name__ == "__main__":
    main()
