"""Stored figures of layers, as a table."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
from fetchhr.bench import NLIST
from recording import read, table

SHOWN = {"flat": "flat", **{f"ivf, {p} of {NLIST} lists": f"{p} list{'s' * (p > 1)}" for p in (1, 4, 16)}}
BUDGETS = (6, 12, 60)


def tables(file: Path) -> None:
    """Accuracy by index and budget, means over the seeds, as Markdown."""
    grouped: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    for row in read(file):
        grouped[row["system"], row["index"], row["k"]].append(row["accuracy"])
    systems = list(dict.fromkeys(system for system, _, _ in grouped))
    columns = [(name, k) for name in SHOWN for k in BUDGETS]
    most = max(map(len, grouped.values()))
    rows = []
    for system in systems:
        found = [grouped.get((system, *column), []) for column in columns]
        seeds = max(map(len, found))
        some = "" if seeds == most else f" ({seeds})"
        rows.append([f"{system}{some}", *(f"{np.mean(values):.1f}" if values else "" for values in found)])
    print(table(["", *(f"{SHOWN[name]} @{k}" if k == 6 else f"@{k}" for name, k in columns)], rows))
