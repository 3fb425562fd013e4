"""Plan of a search: a shortlist by the aggregate, ranked by the best matching field."""

from __future__ import annotations

import numpy as np

from palmette.arrays import Floats
from palmette.methods.fields.config import BLEND, FieldsConfig, FieldsSearch
from palmette.search.plan import Score, SearchPlan

AGGREGATE = "aggregate"
"""Stored array of the document's aggregate vector."""
FIELDS = "fields"
"""Stored array of its field vectors."""
FIELD_SCALES = "scales"
"""Stored array of the scales of int8 field vectors."""
FIELD_WEIGHTS = "weights"
"""Stored array of the fields' weights in the aggregate."""


def part_weights(config: FieldsConfig, options: FieldsSearch) -> Floats:
    """[F] factors of the fields' similarities; 0 for fields that do not count."""
    counted = options.fields or config.order
    factors = [options.factors.get(name, 1.0) if name in counted else 0.0 for name in config.order]
    return np.array(factors, np.float32)


def blend(config: FieldsConfig, options: FieldsSearch) -> float:
    """Share of the aggregate's similarity in a score."""
    if options.by != "two_stage":
        return float(options.by == "aggregate")
    if options.blend is not None or options.fields:
        return options.blend or 0.0
    chosen = BLEND if config.blend is None else config.blend
    return chosen if config.labelled or not config.reads_whole or options.weights else 1.0


def plan(config: FieldsConfig, queries: Floats, k: int, options: FieldsSearch) -> SearchPlan:
    """Search plan of queries [Q, d]."""
    first, share = Score(AGGREGATE, queries), blend(config, options)
    if share == 1:
        return SearchPlan(first)
    scales = FIELD_SCALES if config.stored == "int8" else None
    best = Score(FIELDS, queries, part_weights=part_weights(config, options), scales=scales)
    if options.by == "best":
        return SearchPlan(best)
    return SearchPlan(first, rescore=best, fetch=max(k, options.shortlist), share=share)
