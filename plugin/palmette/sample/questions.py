"""Questions as a person asks them, each with the entries of the standard library that answer it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

__all__ = ["Question", "load_questions"]


@dataclass(frozen=True)
class Question:
    """A handwritten how-to question.

    Attributes:
        id: ``"howto-001"``, …; stable.
        question: What a person would type.
        gold: Ids of the entries that answer it, the most typical first. Some exist in newer Pythons only.
        split: ``"dev"`` to choose by, ``"test"`` to report: the parity of the id's SHA-256.
    """

    id: str
    question: str
    gold: tuple[str, ...]
    split: Literal["dev", "test"]


@cache
def load_questions() -> tuple[Question, ...]:
    """All questions, in the order of their ids."""
    lines = Path(__file__).with_name("questions.jsonl").read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return tuple(Question(row["id"], row["question"], tuple(row["gold"]), row["split"]) for row in rows)
