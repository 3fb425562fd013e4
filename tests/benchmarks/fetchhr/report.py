"""Stored results as tables."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from fetchhr.bench import BUDGETS, INDEXES, lines_of


def few(seeds: int, most: int) -> str:
    """What a row of fewer seeds than others says."""
    return "" if seeds == most else f" ({seeds} seed{'s' * (seeds > 1)})"


def tables(file: Path) -> None:
    """Means over the seeds, as Markdown."""
    grouped: dict[tuple[str, str, int], list[dict[str, Any]]] = defaultdict(list)
    for row in lines_of(file):
        grouped[row["index"], row["system"], row["k"]].append(row)

    def mean(key: tuple[str, str, int], name: str) -> float:
        return float(np.mean([row[name] for row in grouped[key] if name in row]))

    systems = list(dict.fromkeys(system for _, system, _ in grouped))
    most = max(map(len, grouped.values()))
    for name in INDEXES:
        print(f"\n### {name}\n\n| system | " + " | ".join(f"@{k}" for k in BUDGETS) + " |")
        print("|---|" + "---|" * len(BUDGETS))
        for system in systems:
            cells = [
                f"{mean((name, system, k), 'accuracy'):.1f}" if (name, system, k) in grouped else ""
                for k in BUDGETS
            ]
            seeds = max(
                (len(grouped[name, system, k]) for k in BUDGETS if (name, system, k) in grouped), default=0
            )
            if seeds:
                print(f"| {system}{few(seeds, most)} | " + " | ".join(cells) + " |")
    print("\n### Critical words and answers among 120 documents, and nDCG@10\n")
    print(
        "| index | system | with an answer | with the critical word | questions with any | words covered | nDCG@10 |"
    )
    print("|---|---|---|---|---|---|---|")
    for name in INDEXES:
        for system in systems[:5]:
            key, short = (name, system, 120), (name, system, 12)
            if "occurrence" in grouped[key][0]:
                counts = f"{mean(key, 'held'):.2f} | {mean(key, 'occurrence'):.2f}"
                shares = f"{100 * mean(key, 'critical'):.1f} % | {100 * mean(key, 'coverage'):.1f} %"
                print(f"| {name} | {system} | {counts} | {shares} | {mean(short, 'ndcg'):.4f} |")
    print("\n### Support: documents with an answer that each layer adds, 120 in all (figure 4)\n")
    rows = {name: [row["support"] for row in grouped[name, "all layers", 120]] for name in INDEXES}
    layers = sorted({layer for some in rows.values() for row in some for layer in row}, key=int)
    print("| index | " + " | ".join(f"layer {n}" for n in layers) + " |\n|---|" + "---|" * len(layers))
    for name, some in rows.items():
        means = (np.mean([row.get(n, 0) for row in some]) for n in layers)
        print(f"| {name} | " + " | ".join(f"{value:.2f}" for value in means) + " |")
