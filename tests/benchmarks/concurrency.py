"""Query throughput and latency against the number of callers, with and without coalescing.

    python tests/benchmarks/concurrency.py                        # all-MiniLM-L6-v2 on the CPU, under a minute
    python tests/benchmarks/concurrency.py --callers 1 16 --seconds 5 --threads 1

Callers are threads that ask one question after the other, as the workers of a chatbot's server do. Without
coalescing each question is a forward pass of its own.
"""

from __future__ import annotations

import argparse
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from recording import append, find, read, table, write_part

from palmette.encoder import Encoder, load_encoder

WORDS = "how do i open read write sort parse a the file list date json string process thread in python".split()


def questions(seed: int) -> list[str]:
    """Two hundred questions of 5 to 12 words."""
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(WORDS, size=draw.integers(5, 13))) for _ in range(200)]


def measure(ask: Callable[[list[str]], object], callers: int, seconds: float) -> tuple[float, float, float]:
    """Questions per second, and the median and 95th percentile of a question's milliseconds."""
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
    time.sleep(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    spent = time.perf_counter() - began
    median, late = np.percentile(latencies, [50, 95]) * 1e3
    return len(latencies) / spent, float(median), float(late)


def main(argv: Sequence[str] | None = None) -> None:
    """One row per number of callers."""
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--encoder", default="packaged:all-MiniLM-L6-v2", help="name or folder of the encoder")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or mps")
    parser.add_argument("--dtype", default="auto", help="auto, float32, bfloat16 or float16")
    parser.add_argument("--threads", type=int, default=None, help="CPU threads of torch")
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 8, 16, 32, 64], help="numbers of callers")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of each measurement")
    parser.add_argument("--out", type=Path, default=Path("speed.md"), help="the page; lines lie beside it")
    options = parser.parse_args(argv)
    encoder: Encoder = load_encoder(
        options.encoder, device=options.device, dtype=options.dtype, threads=options.threads
    )
    encoder.encode_queries(questions(0))  # warm
    ways = {"alone": lambda texts: encoder.encode(texts, kind="query"), "coalesced": encoder.encode_queries}
    store = options.out.with_suffix(".jsonl")
    for callers in options.callers:
        if not find(store, part="callers", callers=callers):
            found = {name: measure(ask, callers, options.seconds) for name, ask in ways.items()}
            print(append(store, {"part": "callers", "callers": callers, **found}), flush=True)
    lines = sorted((x for x in read(store) if x["part"] == "callers"), key=lambda x: x["callers"])
    rows = [[str(x["callers"]), *(" / ".join(f"{v:.3g}" for v in x[name][:2] if v) for name in ways)] for x in lines]
    write_part(options.out, "callers", table(["callers", *ways], rows))


if __name__ == "__main__":
    main()
