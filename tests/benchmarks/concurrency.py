"""Query throughput and latency against the number of callers, with and without coalescing.

    python tests/benchmarks/concurrency.py --out PAGE      # all-MiniLM-L6-v2 on the CPU, under a minute

Callers are threads that ask one question after the other, as the workers of a chatbot's server do. Without
coalescing each question is a forward pass of its own.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
from common import ENCODER, command_line
from recording import append, find, read, table, write_part

from palmette.encoder import load_encoder

WORDS = "how do i open read write sort parse a the file list date json string process thread in python".split()
CALLERS, SECONDS = (1, 8, 16, 32, 64), 2


def questions(seed: int) -> list[str]:
    """Two hundred questions of 5 to 12 words."""
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(WORDS, size=draw.integers(5, 13))) for _ in range(200)]


def measure(ask: Callable[[list[str]], object], callers: int) -> tuple[float, float]:
    """Questions per second, and the median of a question's milliseconds."""
    latencies: list[float] = []
    start, stop = threading.Barrier(callers + 1), threading.Event()

    def work(seed: int) -> None:
        own = itertools.cycle(questions(seed))
        start.wait()
        while not stop.is_set():
            before = time.perf_counter()
            ask([next(own)])
            latencies.append(time.perf_counter() - before)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(callers)]
    for thread in threads:
        thread.start()
    start.wait()
    began = time.perf_counter()
    time.sleep(SECONDS)
    stop.set()
    for thread in threads:
        thread.join()
    return len(latencies) / (time.perf_counter() - began), 1e3 * float(np.median(latencies))


def main(argv: Sequence[str] | None = None) -> None:
    """One row per number of callers."""
    args = command_line(__doc__, "speed.md").parse_args(argv)
    encoder, store = load_encoder(ENCODER, device="cpu"), args.out.with_suffix(".jsonl")
    encoder.encode_queries(questions(0))  # warm
    ways = {"alone": lambda texts: encoder.encode(texts, kind="query"), "coalesced": encoder.encode_queries}
    for callers in CALLERS:
        if not find(store, part="callers", callers=callers):
            found = {name: measure(ask, callers) for name, ask in ways.items()}
            print(append(store, {"part": "callers", "callers": callers, **found}), flush=True)
    lines = [line for line in read(store) if line["part"] == "callers"]
    rows = [[str(x["callers"]), *(" / ".join(f"{v:.3g}" for v in x[name]) for name in ways)] for x in lines]
    write_part(args.out, "callers", table(["callers", *ways], rows))


if __name__ == "__main__":
    main()
