"""What grouping and distinct passages cost beside a plain search, over many passages.

    python benchmarks/around.py [--passages 100000] [--queries 200]

Documents of five passages of drawn words, a fake encoder of 128 numbers (no transformer: searches are compared, not
encoding). Milliseconds a query, one at a time, the median; and the ratio to the plain search.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from palmette import Document, FakeEncoder, Index, SpaceModel

EACH, WORDS, VOCABULARY = 5, 24, 20_000
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    'group_by="document"': {"group_by": "document"},
    "distinct=True": {"distinct": True},
    'distinct="near"': {"distinct": "near"},
    "boost by value": {"boost": {"kind": {"a": 0.5}}},
}


def drawn(count: int) -> list[Document]:
    """Documents of five paragraphs of words, the frequent ones first as in language."""
    draw = np.random.default_rng(0)
    words = (draw.zipf(1.3, (count, EACH, WORDS)) % VOCABULARY).tolist()
    texts = ["\n\n".join(" ".join(f"w{word}" for word in part) + "." for part in parts) for parts in words]
    return [Document(str(n), text, {"kind": "ab"[n % 2]}) for n, text in enumerate(texts)]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=200)
    args = parser.parse_args(argv)
    documents = drawn(args.passages // EACH)
    index = Index.build(
        documents, SpaceModel.untrained(FakeEncoder(128)), passages={"tokens": WORDS + 1}, progress=False
    )
    asked = [" ".join(document.text.split()[:6]) for document in documents[: args.queries]]
    times: dict[str, list[float]] = {name: [] for name in OPTIONS}
    index.search(asked[0])
    for question in asked:  # in turn, so that a busy moment strikes all alike
        for name, options in OPTIONS.items():
            begun = time.perf_counter()
            index.search(question, **options)
            times[name].append(1000 * (time.perf_counter() - begun))
    plain = float(np.median(times["plain"]))
    print("| | ms | ratio |\n|---|---:|---:|")
    for name, values in times.items():
        print(f"| {name} | {np.median(values):.2f} | {np.median(values) / plain:.2f} |")


if __name__ == "__main__":
    main()
