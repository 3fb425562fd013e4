"""Searching documents of many fields: a shortlist by the aggregated vector, ranked by the field that matches best."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from palmette.methods.fields.config import FieldsConfig, FieldsSearch
from palmette.search.probe import Floats, Found, Parts, Probe

if TYPE_CHECKING:
    from palmette.store.backend import View

__all__ = ["AGGREGATE", "FIELDS", "SCALES", "WEIGHTS", "field_weights", "search"]

AGGREGATE, FIELDS, SCALES, WEIGHTS = "aggregate", "fields", "scales", "weights"


def field_weights(config: FieldsConfig, options: FieldsSearch) -> Floats:
    """[F] what similarities by field are multiplied by; 0 for fields that do not count."""
    given = options.field_weights
    counted = options.fields or config.order
    return np.array([given.get(name, 1.0) if name in counted else 0.0 for name in config.order], np.float32)


def search(view: View, queries: Floats, k: int, options: FieldsSearch, config: FieldsConfig) -> Found:
    """The ``k`` best documents for queries [Q, d]."""
    probe = Probe(AGGREGATE, queries, "inner_product")
    if options.by == "aggregate":
        return view.nearest(probe, k)
    scales = SCALES if config.stored == "int8" else None
    parts = Parts(FIELDS, queries, field_weights(config, options), scales)
    if options.by == "best":
        return view.nearest_part(parts, k)
    first = view.nearest(probe, max(k, options.shortlist))
    found = view.rescored(first.keys, parts, first.keys.shape[1])
    if options.blend:
        found = _blended(first, found, options.blend)
    evidence = {name: array[:, :k] for name, array in found.evidence.items()}
    return replace(first, keys=found.keys[:, :k], scores=found.scores[:, :k], evidence=evidence)


def _blended(first: Found, second: Found, share: float) -> Found:
    """The same documents by both similarities: ``share`` of the first, the rest of the second."""
    own = np.empty(first.scores.shape, np.float32)  # the first stage's scores, in the second one's order
    np.put_along_axis(
        own,
        np.argsort(second.keys, axis=1),
        np.take_along_axis(first.scores, np.argsort(first.keys, axis=1), 1),
        1,
    )
    scores = np.float32(share) * own + np.float32(1 - share) * second.scores  # [Q, n]
    order = np.lexsort((second.keys, -scores), axis=1)
    evidence = {name: np.take_along_axis(array, order, 1) for name, array in second.evidence.items()}
    return replace(
        second,
        keys=np.take_along_axis(second.keys, order, 1),
        scores=np.take_along_axis(scores, order, 1),
        evidence=evidence,
    )
