"""Stored results as tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from common import spread
from numpy.typing import NDArray
from recording import table

BLENDED = "two stages, blended"
MODES = {
    "words": "words",
    "aggregate": "aggregate",
    "best": "best field",
    BLENDED: "two stages",
    "aggregate and words": "aggregate, words",
    f"{BLENDED}, and words": "two stages, words",
}
"""Ways of searching, and what they are called in a table; the paper's own two stages rank as ``best`` does."""
RIVALS = {"untuned encoder, all fields joined": "aggregate", "all fields joined": "aggregate", "MVR": "best"}
"""What every row is compared with, by its main way of searching, and how that is searched."""

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
    return "\n\n".join(f"### {title}\n\n{_table(rows)}\n\n{_facts(rows)}".rstrip() for title, rows in groups.items())


def _table(rows: Rows) -> str:
    """nDCG@10 of each method, by its ways of searching: of every seed, by query."""
    found: dict[str, dict[str, list[list[float]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        for mode, by_query in row["rows"].items():
            found[row["method"]][mode].append(by_query)
    shown, folds = [name for name in RIVALS if name in found], rows[0]["folds"]
    lines = []
    for method, modes in found.items():
        main = modes.get(BLENDED) or next(iter(modes.values()))
        cells = [spread([float(np.mean(one)) for one in modes.get(mode, ())]) for mode in MODES]
        cells += ["" if name == method else _against(main, found[name][RIVALS[name]], folds) for name in shown]
        lines.append([method, *cells])
    return table(["nDCG@10", *MODES.values(), *(f"against {name}" for name in shown)], lines)


def _against(seeds: list[list[float]], others: list[list[float]], folds: int) -> str:
    """The difference of nDCG@10 in points, and how likely chance makes one as large."""
    first, second = _by_query(seeds, folds), _by_query(others, folds)
    if len(first) != len(second):
        return ""
    return f"{100 * (first.mean() - second.mean()):+.1f} (p {p_value(first, second):.3f})"


def _by_query(seeds: list[list[float]], folds: int) -> NDArray[np.float64]:
    """nDCG@10 by query: the mean over seeds, or the folds on end, whose queries differ."""
    return np.concatenate(seeds) if folds else np.mean(seeds, axis=0)


def _facts(rows: Rows) -> str:
    for row in rows:
        if row["facts"] and row["seed"] == 0 and row["method"] == "CHARM":
            kept = ", ".join(f"{share:.1%} at {size}" for size, share in row["facts"]["kept of the best ten"].items())
            matched = ", ".join(f"{name} {count}" for name, count in row["facts"]["matched"].items())
            return (
                f"CHARM, seed 0: kept of the ten that `best` finds by a shortlist: {kept}; "
                f"field of the best hit: {matched}."
            )
    return ""
