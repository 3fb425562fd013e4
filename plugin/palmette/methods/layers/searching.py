"""One batched search for all layers, and how their documents become one list (Q queries, L layers, k places)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from palmette.methods.layers.config import LayersSearch
from palmette.search.probe import Floats, Found, Keys, Probe

if TYPE_CHECKING:
    from palmette.store.backend import View

__all__ = ["FUSED", "LAYERS", "VECTOR", "WHOLE", "allotted", "budgets", "search"]

VECTOR = "vector"
"""The encoder's own vector of a document."""
LAYERS, FUSED = "layers", "fused"
"""Query arrays: a vector for each layer [L, d], and their weighted mean [d]."""
WHOLE = "whole"
"""Query array, once planned: how many documents there are in all [1]."""

Ints = NDArray[np.int64]


def budgets(k: int, shares: Sequence[int]) -> list[int]:
    """``k`` places dealt by shares; what does not divide goes to the largest remainders, of equal ones to the last.

    >>> budgets(10, [1, 1, 1, 1, 1, 1]), budgets(4, [3, 0, 1])
    ([1, 1, 2, 2, 2, 2], [3, 0, 1])
    """
    whole = sum(shares)
    dealt = [k * share // whole for share in shares]
    rest = sorted(range(len(shares)), key=lambda at: (-(k * shares[at] % whole), -at))
    for at in rest[: k - sum(dealt)]:
        dealt[at] += 1
    return dealt


def allotted(ranked: Keys, dealt: Sequence[int]) -> Ints:
    """Each layer's best that no earlier layer took (the paper's equation 4): where in ``ranked`` they stand.

    A layer with b places after earlier layers took t documents needs its t + b best at most: t of them may be taken,
    then b are left. So one search that fetches k = Σ b for every layer is enough, and gives exactly k documents. Where
    an engine found fewer, places that a layer cannot fill go to whatever else was found.

    Args:
        ranked: [Q, L, F] keys of each layer's nearest, best first; −1 where there is none.
        dealt: Places of each layer, k in all.

    Returns:
        [Q, k] layer · F + column; −1 at the end, where there are too few.
    """
    _, layers, deep = ranked.shape
    k = sum(dealt)
    out = np.full((len(ranked), k), -1, np.int64)
    turns = [*enumerate(accumulate(dealt)), *((layer, k) for layer in range(layers))]
    for row, found in enumerate(ranked.tolist()):
        seen, taken = {-1}, list[int]()
        for layer, most in turns:
            if len(taken) < most:
                own = found[layer][:most]
                columns = [at for at, key in enumerate(own) if key not in seen][: most - len(taken)]
                seen.update([own[at] for at in columns])
                taken += [layer * deep + at for at in columns]
        out[row, : len(taken)] = taken
    return out


def search(
    view: View,
    queries: Floats,
    fused: Floats,
    layers: Sequence[int],
    k: int,
    options: LayersSearch,
    part: bool = False,
) -> Found:
    """The documents of a view for queries [Q, L, d] of these layers, and their weighted means [Q, d].

    Evidence ``layer`` says who found each: the layer in whose places it is; in a fused list the one that ranks it
    highest, of equals the first. 0 where it is among no layer's ``k`` best, and in ``part`` of what is searched,
    where ranks say nothing.
    """
    if options.order == "fused":
        found = _fused(view, queries, fused, layers, k)
        return replace(found, evidence={"layer": np.zeros_like(found.keys)}) if part else found
    dealt = budgets(min(k, len(view)), options.budget or [1] * len(layers))
    for rough in (True, False):
        found, ranked, scores = _asked(view, queries, k, rough)
        at = allotted(ranked, dealt)
        if not (found.approximate and (at < 0).any()):
            break
    place = at // ranked.shape[2]
    if options.order == "interleave":
        at = _in_turns(at, place)
        place = at // ranked.shape[2]
    rows = np.arange(len(at))[:, None]
    keys, scored = ranked.reshape(len(at), -1)[rows, at], scores.reshape(len(at), -1)[rows, at]
    keys[at < 0], scored[at < 0] = -1, -np.inf
    return _of(keys, scored, np.asarray(layers)[place], found, view, len(layers))


def _in_turns(at: Ints, place: Ints) -> Ints:
    """The best of each layer, then the second best of each, …: [Q, k] again."""
    rank = np.zeros_like(place)
    for layer in np.unique(place):
        own = place == layer
        rank[own] = (np.cumsum(own, axis=1) - 1)[own]
    return np.take_along_axis(at, np.lexsort((place, rank, at < 0), axis=1), 1)


def _asked(view: View, queries: Floats, k: int, rough: bool) -> tuple[Found, Keys, Floats]:
    """All queries [Q, L, d] in one probe; keys and scores [Q, L, F]."""
    found = view.nearest(
        Probe(VECTOR, queries.reshape(-1, queries.shape[2]), "inner_product", rough=rough), k
    )
    shape = (*queries.shape[:2], -1)
    return found, found.keys.reshape(shape), found.scores.reshape(shape)


def _fused(view: View, queries: Floats, fused: Floats, layers: Sequence[int], k: int) -> Found:
    """The best by the mean query, among what it or any layer finds: where an engine is exact, the best of all."""
    rows = np.concatenate([queries, fused[:, None]], axis=1)  # [Q, L + 1, d]
    for rough in (True, False):
        found, ranked, scores = _asked(view, rows, k, rough)
        keys, scored, by = _best(view, ranked, scores, fused, layers, found.approximate)
        if not (found.approximate and (keys < 0).any()):
            break
    return _of(keys, scored, by, found, view, rows.shape[1])


def _of(keys: Keys, scores: Floats, by: Ints, found: Found, view: View, rows: int) -> Found:
    """A result, whose effort is that of all its ``rows`` of queries."""
    compared = min(float(len(view)), rows * found.compared)
    refined, read = rows * found.refined, rows * found.read
    return Found(keys, scores, compared, {"layer": by}, refined, read, found.approximate)


def _best(
    view: View, ranked: Keys, scores: Floats, fused: Floats, layers: Sequence[int], approximate: bool
) -> tuple[Keys, Floats, Ints]:
    """The best by the mean query, which asks last, of everything found [Q, L + 1, F]: keys, scores, layers [Q, F]."""
    width = ranked.shape[2]
    keys = np.full((len(ranked), width), -1, np.int64)
    scored = np.full(keys.shape, -np.inf, np.float32)
    by = np.zeros(keys.shape, np.int64)
    number = np.array([*layers] * width + [0] * width)
    for row, query in enumerate(fused):
        ranks = np.concatenate([ranked[row, :-1].T.reshape(-1), ranked[row, -1]])  # the layers' best first
        every, first = np.unique(ranks, return_index=True)  # [n] rising, and where each stands highest
        there = int(np.searchsorted(every, 0))
        every, first = every[there:], number[first[there:]]
        held = int((ranked[row, -1] >= 0).sum())
        order, values = np.searchsorted(every, ranked[row, -1, :held]), scores[row, -1, :held]
        if approximate and held < len(every):
            more = np.ones(len(every), bool)  # what the mean query did not find
            more[order] = False
            missed = np.asarray(view.array(VECTOR, every[more].tolist()), np.float32) @ query
            order, values = np.append(order, np.flatnonzero(more)), np.append(values, missed)
            best = np.lexsort((every[order], -values))[:width]
            order, values = order[best], values[best]
        places = slice(len(order))
        keys[row, places], scored[row, places], by[row, places] = every[order], values, first[order]
    return keys, scored, by
