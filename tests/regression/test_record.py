"""What was found before must be found again: ids exactly, scores nearly.

PALMETTE_EXACT=1 compares every bit. ``make.py`` says how to record a change that is meant.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palmette.methods.fields.module import FieldEncoder
from regression import api, record

EXACT = os.environ.get("PALMETTE_EXACT") == "1"
NEAR = 1e-5
"""Share by which scores may differ: other processors and BLAS kernels round sums of float32 otherwise, by 3e-6 so far.

No code of int8 depends on it, since that record begins from vectors that are the same everywhere (``vectors.py``).
"""
RECORDS = {path.stem: record.load(path.stem) for path in sorted(record.RECORDS.glob("*.json"))}
OTHERS = RECORDS.pop("others")[""]["cases"]
BLOCKS = [(name, block) for name in RECORDS for block in RECORDS[name]]


def assert_same(found: Any, expected: Any, what: str) -> None:
    """Names and places exactly, numbers exactly or nearly."""
    if EXACT or isinstance(expected, dict) or isinstance(found, dict):
        assert found == expected, what
        return
    assert len(found) == len(expected), what
    for row, ((names, new), (known, old)) in enumerate(zip(found, expected, strict=True)):
        values, wanted = ([float.fromhex(value) for value in some] for some in (new, old))
        assert in_order(names, values, known, wanted), f"{what}, row {row}: {names} instead of {known}"
        largest = max(map(abs, wanted), default=0.0)
        assert values == pytest.approx(wanted, rel=NEAR, abs=NEAR * largest), f"{what}, row {row}: {known}"


def in_order(names: list[Any], values: list[float], known: list[Any], wanted: list[float]) -> bool:
    """Whether names are the same, but for the order of neighbours whose scores are nearly, not exactly, equal."""
    start = 0
    for end in range(1, len(known) + 1):
        if end < len(known) and abs(wanted[end] - wanted[end - 1]) <= NEAR * abs(wanted[end]):
            continue
        new, old, here = names[start:end], known[start:end], slice(start, end)
        tied = len(set(values[here])) == len(set(wanted[here])) == 1
        if new != old and (tied or sorted(new) != sorted(old)):
            return False
        start = end
    return len(names) == len(known)


@pytest.mark.parametrize(("name", "block"), BLOCKS)
def test_searches_scores_and_explanations(name: str, block: str) -> None:
    recorded = RECORDS[name][block]["cases"]
    for case, found in record.cases(name, RECORDS[name][block]["options"]).items():
        expected = recorded[case] if case in recorded else recorded[record.same_as(case)]
        assert_same(found, expected, f"{name}, {block}, {case}")


@pytest.mark.parametrize(("name", "block"), [pair for pair in BLOCKS if record.has_index(pair[0])])
def test_an_index_opens(name: str, block: str, tmp_path: Path) -> None:
    found = record.opened(name, tmp_path / "index", RECORDS[name][block]["options"])
    assert_same(found, RECORDS[name][block]["cases"]["opened"], f"{name}, {block}, opened")


@pytest.mark.parametrize("name", [name for name in RECORDS if record.has_index(name)])
def test_an_index_is_changed_and_searched(name: str, tmp_path: Path) -> None:
    with api.open_index(name, tmp_path / "index") as index:
        before, again = record.searches(name, index, lexical=0), api.documents(name)[9]
        index.add([again], progress=False)
        assert again.key in [id for id, _ in api.search(index, record.queries(name)[:1], 1000)[0]]
        index.delete([again.key])
        assert_same(record.searches(name, index, lexical=0), before, name)


def test_the_encoder_of_fields_makes_the_recorded_vectors() -> None:
    module, recorded = api.open_model("fields").module, api.recorded_vectors()
    assert len(recorded) > 60
    for key, row in recorded.items():
        kind, ids = json.loads(key)
        for made, expected in zip(FieldEncoder.encode(module, kind, [ids]), row, strict=True):
            np.testing.assert_allclose(made[0], expected, rtol=0, atol=NEAR, err_msg=key)


def test_readers_and_retrievers(tmp_path: Path) -> None:
    for case, found in record.others(tmp_path).items():
        assert_same(found, OTHERS[case], case)
