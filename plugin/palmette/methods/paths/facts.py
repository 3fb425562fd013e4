"""What a training leaves behind besides weights: recall by documents visited, and what the leaves hold."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from palmette.errors import CheckpointError
from palmette.lexical.terms import Terms, check_terms

__all__ = ["FACTS", "Facts", "facts_from_json", "facts_to_json"]

FACTS = "leaves.json"

Numbers = Mapping[str, float]


@dataclass(frozen=True)
class Facts:
    """Of one training.

    Attributes:
        curve: Share of the documents that may be visited → recall there, on held-out queries; empty without any.
        load: How full the leaves were with the training's documents, see ``health.py``.
        loads: The same as training went on, by step and epoch.
        documents: What each leaf is about, in the words of its documents.
        queries: The same in the words of the training's queries.
    """

    curve: Mapping[float, Numbers] = field(default_factory=dict)
    load: Numbers = field(default_factory=dict)
    loads: tuple[Numbers, ...] = ()
    documents: Terms = field(default_factory=dict)
    queries: Terms = field(default_factory=dict)


def facts_to_json(facts: Facts) -> bytes:
    """For a checkpoint."""
    value = {
        "curve": {repr(share): dict(row) for share, row in facts.curve.items()},
        "load": dict(facts.load),
        "loads": [dict(row) for row in facts.loads],
        "documents": facts.documents,
        "queries": facts.queries,
    }
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()


def facts_from_json(data: bytes, where: str) -> Facts:
    """Read back what :func:`facts_to_json` wrote; anything else raises CheckpointError."""
    try:
        value = json.loads(data)
        curve = {float(share): _numbers(row) for share, row in value["curve"].items()}
        facts = Facts(
            curve=dict(sorted(curve.items())),
            load=_numbers(value["load"]),
            loads=tuple(map(_numbers, value["loads"])),
            documents=check_terms(value["documents"], where, _is_leaf, "leaf such as '3.17'"),
            queries=check_terms(value["queries"], where, _is_leaf, "leaf such as '3.17'"),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(
            f"{where} does not hold the facts of a learned index ({error!r}); save the checkpoint again"
        ) from error
    return facts


def _numbers(row: Any) -> Numbers:
    """As they were written, 3 or 3.0: a checkpoint that is saved again must keep its fingerprint."""
    numbers = dict(row.items())
    if not all(type(value) in (int, float) and math.isfinite(value) for value in numbers.values()):
        raise ValueError(f"numbers must be finite, got {numbers}")
    return numbers


def _is_leaf(name: str) -> bool:
    return all(turn.isdecimal() for turn in name.split("."))
