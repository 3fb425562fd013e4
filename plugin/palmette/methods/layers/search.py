"""One search for all layers, and one list of what they find (Q queries, L layers, n candidates, k places)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np

from palmette.arrays import Floats, Keys, Rows
from palmette.methods.layers.config import LayersSearch
from palmette.search.plan import Candidates, Score, SearchPlan, View

VECTOR = "vector"
"""Stored array: the encoder's own vector of a document."""
LAYERS, FUSED = "layers", "fused"
"""Query arrays: a vector per layer [L, d], and their weighted mean [d]."""


def layers_plan(queries: Floats, fused: Floats, options: LayersSearch) -> SearchPlan:
    """Search with the queries of all layers [Q, L, d], and in a fused search with their weighted mean [Q, d] too."""
    if options.order == "fused":
        queries = np.concatenate([queries, fused[:, None]], axis=1)  # [Q, L + 1, d]
    rows = np.ascontiguousarray(queries.reshape(-1, queries.shape[2]), np.float32)
    return SearchPlan(Score(VECTOR, rows), group=queries.shape[1])


def merge_layers(
    view: View, plan: SearchPlan, found: Candidates, layers: Sequence[int], k: int, options: LayersSearch
) -> Candidates:
    """One list per query from the candidates [Q·L, n] of these layers.

    Evidence ``layer``: the layer in whose places a document is; in a fused list the layer that ranks it highest, of
    equals the first, and 0 if it is among no layer's candidates or only given documents are scored, where ranks say
    nothing.
    """
    shape = (len(found.keys) // plan.group, plan.group, found.keys.shape[1])
    ranked, scores = found.keys.reshape(shape), found.scores.reshape(shape)  # [Q, L, n] each
    if options.order == "fused":
        queries = plan.first.queries.reshape(-1, plan.group, plan.first.queries.shape[1])[:, -1]
        keys, values, finder = _fuse(view, ranked, scores, queries, layers, found.approximate)
        finder = finder if plan.only is None else np.zeros_like(finder)
    else:
        at = take_new_per_layer(ranked, split_budget(min(k, len(view)), options.budget or [1] * len(layers)))
        if options.order == "interleave":
            at = interleave(at, at // shape[2])
        rows = np.arange(len(at))[:, None]
        keys, values = ranked.reshape(len(at), -1)[rows, at], scores.reshape(len(at), -1)[rows, at]
        keys, values = np.where(at < 0, -1, keys), np.where(at < 0, np.float32(-np.inf), values)
        finder = np.asarray(layers)[at // shape[2]]
    return replace(
        found,
        keys=keys,
        scores=values,
        visited=min(float(len(view)), plan.group * found.visited),
        evidence={"layer": finder},
        refined=plan.group * found.refined,
        read=plan.group * found.read,
    )


def split_budget(k: int, shares: Sequence[int]) -> list[int]:
    """``k`` places divided by shares; the rest goes to the largest remainders, of equal ones to the last.

    >>> split_budget(10, [1, 1, 1, 1, 1, 1]), split_budget(4, [3, 0, 1])
    ([1, 1, 2, 2, 2, 2], [3, 0, 1])
    """
    whole = sum(shares)
    places = [k * share // whole for share in shares]
    order = sorted(range(len(shares)), key=lambda at: (-(k * shares[at] % whole), -at))
    for at in order[: k - sum(places)]:
        places[at] += 1
    return places


def take_new_per_layer(ranked: Keys, places: Sequence[int]) -> Rows:
    """Best documents of each layer that no earlier layer took (equation 4), as positions in ``ranked``.

    A layer with b places, after earlier layers took t documents, needs its t + b best at most. So one search that
    fetches k = Σ b per layer is enough and gives exactly k documents. Where an engine finds fewer, places that a layer
    cannot fill go to whatever else was found.

    Args:
        ranked: [Q, L, n] keys of each layer's nearest documents, best first, padded with −1.
        places: Places of each layer, k in all.

    Returns:
        [Q, k] layer · n + column, padded with −1.
    """
    _, layers, width = ranked.shape
    k = sum(places)
    out = np.full((len(ranked), k), -1, np.int64)
    turns = [*enumerate(accumulate(places)), *((layer, k) for layer in range(layers))]
    for row, found in enumerate(ranked.tolist()):
        seen, taken = {-1}, list[int]()
        for layer, most in turns:
            if len(taken) < most:
                own = found[layer][:most]
                columns = [at for at, key in enumerate(own) if key not in seen][: most - len(taken)]
                seen.update([own[at] for at in columns])
                taken += [layer * width + at for at in columns]
        out[row, : len(taken)] = taken
    return out


def interleave(at: Rows, layer: Rows) -> Rows:
    """Positions [Q, k] with the best of each layer first, then the second best of each, …."""
    rank = np.zeros_like(layer)
    for one in np.unique(layer):
        own = layer == one
        rank[own] = (np.cumsum(own, axis=1) - 1)[own]
    return np.take_along_axis(at, np.lexsort((layer, rank, at < 0), axis=1), 1)


def _fuse(
    view: View, ranked: Keys, scores: Floats, fused: Floats, layers: Sequence[int], approximate: bool
) -> tuple[Keys, Floats, Rows]:
    """Best documents by the mean query, the last row of [Q, L + 1, n]: keys, scores, layers [Q, n].

    An approximate engine may find documents with a layer's query that it misses with the mean: they are scored too.
    """
    width = ranked.shape[2]
    keys, values = ranked[:, -1].copy(), scores[:, -1].copy()
    finder = np.zeros(keys.shape, np.int64)
    number = np.array([*layers] * width + [0] * width)
    for row, query in enumerate(fused):
        ranks = np.concatenate([ranked[row, :-1].T.reshape(-1), ranked[row, -1]])  # the layers' best first
        every, first = np.unique(ranks, return_index=True)
        if approximate and len(missed := np.setdiff1d(every[every >= 0], keys[row])):
            held = keys[row] >= 0
            more = np.asarray(view.rows(VECTOR, missed.tolist()), np.float32) @ query
            own, value = np.append(keys[row][held], missed), np.append(values[row][held], more)
            best = np.lexsort((own, -value))[:width]
            keys[row, : len(best)], values[row, : len(best)] = own[best], value[best]
        finder[row] = number[first[np.searchsorted(every, keys[row])]]
    return keys, values, np.where(keys < 0, 0, finder)
