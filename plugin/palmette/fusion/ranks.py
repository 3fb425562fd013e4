"""Reciprocal-rank fusion: what counts of a member's score is the place it gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palmette.errors import InputError
from palmette.fusion.members import named, together
from palmette.model import Model, Queries
from palmette.search.probe import Found, Keys, joined
from palmette.types import Explanation, Part

__all__ = ["explained_by_rank", "fused_by_rank"]

OFFSET = 60
"""How little the first places differ: a document of rank r gets 1 / (60 + r) from a member."""
RANK = "rank"
"""Where the rank that a member gave is remembered; 0 for none."""


def fused_by_rank(lists: Sequence[Found], k: int) -> Found:
    """The ``k`` best of what several members have found, equal ones by key."""
    rows = [_one([found.keys[row] for found in lists], k) for row in range(len(lists[0].keys))]
    first = lists[0]
    evidence = together([{RANK: np.zeros(first.keys.shape, np.int32)} for _ in lists])
    compared = float(np.mean([found.compared for found in lists]))
    return joined(rows, Found(first.keys, first.scores, compared, evidence))


def _one(shown: Sequence[Keys], k: int) -> tuple[Keys, NDArray[np.float32], dict[str, NDArray[np.generic]]]:
    shown = [keys[keys >= 0] for keys in shown]
    every = np.unique(np.concatenate(shown))
    ranks = np.zeros((len(shown), len(every)), np.int32)  # [M, n]
    for place, keys in enumerate(shown):
        ranks[place, np.searchsorted(every, keys)] = 1 + np.arange(len(keys))
    scores = np.where(ranks > 0, 1 / (OFFSET + ranks), 0).sum(axis=0)
    best = np.lexsort((every, -scores))[:k]
    evidence = together([{RANK: given[best]} for given in ranks])
    return every[best], scores[best].astype(np.float32), evidence


def explained_by_rank(
    members: Sequence[Model],
    query: Queries,
    arrays: Mapping[str, NDArray[np.generic]],
    evidence: Mapping[str, Any],
) -> Explanation:
    """A part for every member that ranked the document."""
    parts, texts, details = [], [], {}
    for place, member in enumerate(members):
        name, key = f"{place}:{member.method}", named(place, RANK)
        if key not in evidence:
            raise InputError(
                "ranks are known of a search's hits only: search with explain=True, or use hit.explain()"
            )
        rank = int(evidence[key])
        details[name] = {"rank": rank or None}
        if rank:
            parts.append(Part(f"{name} rank", 1 / (OFFSET + rank), {"rank": rank}))
            texts.append(f"rank {rank} by {member.method}")
    score = sum(part.value for part in parts)
    return Explanation(score, parts, f"score {score:.4f}: {', '.join(texts)}", {"members": details})
