"""Stored arrays, and what a field and the aggregate count in a search."""

from __future__ import annotations

import numpy as np

from palmette.arrays import Floats
from palmette.methods.fields.config import BLEND, FieldsConfig, FieldsSearch

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
