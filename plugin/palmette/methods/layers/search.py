"""One search for all layers, and one list of what they find (Q queries, L layers, n candidates, k places)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np

from palmette.arrays import Floats, Keys, Rows
from palmette.methods.base import VECTOR
from palmette.methods.layers.config import LayersSearch
from palmette.search.plan import Candidates, Score, SearchPlan
from palmette.store.protocols import View

LAYERS = "layers"
"""Query array of one vector per layer [L, d]."""
FUSED = "fused"
"""Query array of their weighted mean [d]."""


def layers_plan(queries: Floats, fused: Floats, options: LayersSearch) -> SearchPlan:
    """Search with the queries of all layers [Q, L, d], or in a fused search with their weighted mean [Q, d] alone."""
    if options.order == "fused":
        return SearchPlan(Score(VECTOR, fused))
    rows = np.ascontiguousarray(queries.reshape(-1, queries.shape[2]), np.float32)
    return SearchPlan(Score(VECTOR, rows), group=queries.shape[1], context={FUSED: fused})


def merge_layers(
    view: View, plan: SearchPlan, candidates: Candidates, layers: Sequence[int], k: int, options: LayersSearch
) -> Candidates:
    """One list per query from the candidates [Q·L, n] of these layers, with the scores of a fused search.

    Evidence ``layer`` is the layer that contributed a document.
    """
    if options.order == "fused":
        return candidates
    shape = (len(candidates.keys) // plan.group, plan.group, candidates.keys.shape[1])
    ranked = candidates.keys.reshape(shape)  # [Q, L, n]
    wanted, count = min(k, len(view)), len(layers)
    at = take_new_per_layer(ranked, [(wanted + place) // count for place in range(count)])  # the last know most
    rows = np.arange(len(at))[:, None]
    keys = np.where(at < 0, -1, ranked.reshape(len(at), -1)[rows, at])  # [Q, k]
    # the weighted mean compared with each document, in double precision
    scores, real = np.full(keys.shape, -np.inf, np.float32), keys >= 0
    distinct, where = np.unique(keys[real], return_inverse=True)
    vectors = view.rows(VECTOR, distinct.tolist()).astype(np.float64)[where]
    fused = np.repeat(plan.context[FUSED].astype(np.float64), real.sum(axis=1), axis=0)
    scores[real] = np.einsum("nd,nd->n", fused, vectors)
    return replace(
        candidates,
        keys=keys,
        scores=scores,
        visited=min(float(len(view)), plan.group * candidates.visited),
        evidence={"layer": np.asarray(layers)[at // shape[2]]},
    )


def take_new_per_layer(ranked: Keys, places: Sequence[int]) -> Rows:
    """Best documents of each layer that no earlier layer took (equation 4): keys [Q, L, n] → layer · n + column [Q, k].

    A layer with b places, after earlier layers took t documents, needs its t + b best at most. So one search that
    fetches k = Σ b per layer is enough and gives exactly k documents. Where an engine finds fewer, places that a layer
    cannot fill go to whatever else was found. Both are padded with −1.
    """
    _, layers, width = ranked.shape
    k = sum(places)
    out = np.full((len(ranked), k), -1, np.int64)
    turns = [*enumerate(accumulate(places)), *((layer, k) for layer in range(layers))]
    for row, layer_rows in enumerate(ranked.tolist()):
        known, merged = {-1}, list[int]()
        for layer, most in turns:
            if len(merged) < most:
                own = layer_rows[layer][:most]
                columns = [at for at, key in enumerate(own) if key not in known][: most - len(merged)]
                known.update([own[at] for at in columns])
                merged += [layer * width + at for at in columns]
        out[row, : len(merged)] = merged
    return out
