"""Stored results as tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from charm.bench import SHOWN
from numpy.typing import NDArray

RIVALS = {
    "BM25": ("BM25", "words"),
    "untuned encoder, joined": ("untuned encoder, all fields joined", "aggregate"),
    "the same and words": ("untuned encoder, all fields joined", "aggregate and words"),
    "all fields joined": ("all fields joined", "aggregate"),
    "MVR": ("MVR", "best"),
}
"""What every row is compared with, and how that is searched."""

Rows = Sequence[Mapping[str, Any]]


def p_value(first: Sequence[float], second: Sequence[float], rounds: int = 10_000) -> float:
    """Two-sided paired permutation test of a difference of means over queries."""
    difference = np.asarray(first) - np.asarray(second)
    draw = np.random.default_rng(0)
    signs = draw.choice([-1.0, 1.0], (rounds, len(difference)))
    shuffled = np.abs((signs * difference).mean(1))
    return float((1 + (shuffled >= abs(difference.mean()) - 1e-12).sum()) / (rounds + 1))


def tables(results: Rows) -> str:
    """One table for each data set and training, and what is known of CHARM's fields."""
    groups: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for result in results:
        groups[result["title"]].append(result)
    return "\n\n".join(
        f"## {title}\n\n{_table(rows)}\n\n{_facts(rows)}".rstrip() for title, rows in groups.items()
    )


def _table(rows: Rows) -> str:
    means: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        for mode, measured in row["rows"].items():
            means[row["method"], mode].append(measured)
    shown = {name: key for name, key in RIVALS.items() if key in means}
    lines = [
        "| method | searched by | seeds | "
        + " | ".join([*SHOWN, *(f"against {name}" for name in shown)])
        + " |",
        "|---|---|---|" + "---|" * (len(SHOWN) + len(shown)),
    ]
    for (method, mode), measured in means.items():
        numbers = [_spread(measured, name) for name in SHOWN]
        for key in shown.values():
            own = key == (method, mode)
            numbers.append("" if own else _against(measured, means[key], rows[0].get("folds")))
        lines.append(f"| {method} | {mode} | {len(measured)} | {' | '.join(numbers)} |")
    return "\n".join(lines) + "\n\nAgainst others: points of nDCG@10, paired permutation test over queries."


def _against(measured: Rows, other: Rows, folds: int | None) -> str:
    """The difference of nDCG@10 in points, and how likely chance makes one as large."""
    first, second = _by_query(measured, folds), _by_query(other, folds)
    if len(first) != len(second):
        return ""
    return f"{100 * (first.mean() - second.mean()):+.1f} (p {p_value(first, second):.3f})"


def _mean(measured: Rows, name: str) -> float:
    return float(np.mean([m["scores"][name] for m in measured]))


def _by_query(measured: Rows, folds: int | None) -> NDArray[np.float64]:
    """nDCG@10 by query: the mean over seeds, or the folds on end, whose queries differ."""
    values = [np.asarray(m["by_query"], np.float64) for m in measured]
    return np.concatenate(values) if folds else np.mean(values, axis=0)


def _spread(measured: Rows, name: str) -> str:
    values = [m["scores"][name] for m in measured]
    spread = f" ± {np.std(values):.4f}" if len(values) > 1 else ""
    return f"{np.mean(values):.4f}{spread}"


def _facts(rows: Rows) -> str:
    lines = []
    for row in rows:
        facts = row["facts"]
        if "kept of the best ten" not in facts or row["seed"] != 0 or not row["method"].startswith("CHARM"):
            continue
        kept = ", ".join(f"{share:.1%} at {size}" for size, share in facts["kept of the best ten"].items())
        matched = ", ".join(f"{name} {count}" for name, count in facts["matched"].items())
        words = ", ".join(f"{n} {v}" for n, v in facts["words of queries by matched field"].items())
        cosines = ", ".join(f"{n} {v}" for n, v in facts["cosine to the field before"].items())
        lines.append(
            f"{row['method']}, seed 0: kept of the ten that `best` finds by a shortlist: {kept}; field of the best "
            f"hit: {matched}; words of the queries by matched field: {words}; cosine of a field to the one before: "
            f"{cosines}."
        )
    return "\n\n".join(lines)
