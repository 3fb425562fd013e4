"""Counts and times of a service, in the text format of Prometheus."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import defaultdict
from pathlib import Path

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds in seconds of the buckets that requests are counted in."""
TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Content type of the format."""


class Metrics:
    """Counters and histograms of a service since its start, used only by the thread of the event loop."""

    def __init__(self) -> None:
        self.in_flight = 0
        self._requests: dict[tuple[str, int], int] = defaultdict(int)  # (path, status) → requests
        self._buckets: dict[str, list[int]] = defaultdict(lambda: [0] * (len(BOUNDS) + 1))
        self._seconds: dict[str, float] = defaultdict(float)

    def observe(self, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests[path, status] += 1
        self._buckets[path][bisect_left(BOUNDS, seconds)] += 1
        self._seconds[path] += seconds

    def text(self, documents: dict[str, int | None]) -> str:
        """Return all metrics as text, with the number of documents of each index; ``None`` of one that is not read."""
        # 1. what has labels: requests, their times, indexes
        requests = [f'{{path="{p}",status="{s}"}} {count}' for (p, s), count in sorted(self._requests.items())]
        seconds = list[str]()
        for path, counts in sorted(self._buckets.items()):
            total = 0
            for bound, count in zip((*BOUNDS, "+Inf"), counts, strict=True):
                total += count
                seconds.append(f'_bucket{{path="{path}",le="{bound}"}} {total}')
            seconds.append(f'_sum{{path="{path}"}} {self._seconds[path]:.6f}')
            seconds.append(f'_count{{path="{path}"}} {total}')
        names = {name: name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for name in documents}
        counted = [f'{{index="{names[n]}"}} {count}' for n, count in documents.items() if count is not None]
        readable = [f'{{index="{names[n]}"}} {int(count is not None)}' for n, count in documents.items()]
        # 2. every metric with its kind, its help and its values
        metrics: list[tuple[str, str, str, list[str]]] = [
            ("palmette_requests_total", "counter", "Requests by path and status", requests),
            ("palmette_request_seconds", "histogram", "Time from a request's head to its last byte", seconds),
            ("palmette_requests_in_flight", "gauge", "Requests that are being answered", [f" {self.in_flight}"]),
            ("palmette_documents", "gauge", "Documents of an index", counted),
            ("palmette_index_up", "gauge", "Whether an index can be read", readable),
            ("process_resident_memory_bytes", "gauge", "Memory of the service", [f" {resident_memory()}"]),
        ]
        lines = list[str]()
        for name, kind, about, values in metrics:
            lines += [f"# HELP {name} {about}.", f"# TYPE {name} {kind}", *(name + value for value in values)]
        return "\n".join([*lines, ""])


def resident_memory() -> int:
    """Return the memory of this process in bytes; its peak on systems that report only that."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
