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
    blended = replace(parts, own=first.scores, share=options.share)
    found = view.rescored(first.keys, blended, k)
    return replace(first, keys=found.keys, scores=found.scores, evidence=found.evidence)
