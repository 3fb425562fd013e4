"""From questions and passages to what training and validation read: who else is found, and who is held out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from palmette.answers import holds_answer
from palmette.reader.config import ReaderConfig
from palmette.reader.data import Asked, ReadingData

if TYPE_CHECKING:
    from palmette.cache import EncodingCache
    from palmette.encoder import Encoder

__all__ = ["Exam", "Lessons"]

EXAMS = 200
"""Held-out questions that a validation reads."""
EXAM_PASSAGES, ABSENT = 3, 0.3
"""What each is read in, and the share whose own passage is withheld, where all have an answer."""


class Exam(NamedTuple):
    """A held-out question, the rows of the passages it is read in, and whether those have an answer."""

    asked: Asked
    rows: Sequence[int]
    answered: bool


@dataclass(frozen=True)
class Lessons:
    """What a reader is trained and examined on.

    Attributes:
        data: Passages and questions.
        train: The training questions.
        others: For each of them, rows of passages that a retriever finds and that do not have the answer.
        dev: Held-out questions among other passages.
    """

    data: ReadingData
    train: Sequence[Asked]
    others: Sequence[Sequence[int]]
    dev: Sequence[Exam]

    @classmethod
    def of(
        cls,
        data: ReadingData,
        config: ReaderConfig,
        encoder: Encoder,
        cache: EncodingCache,
        *,
        seed: int,
        progress: bool | None,
    ) -> Self:
        """Find other passages for every question."""
        how: Any = {"encoder": encoder, "cache": cache, "progress": progress}
        train = data.split("train")
        count = 4 * (config.passages - 1) + 2 if config.passages > 1 or config.absent else 0
        wrong = others(data, train, count=count, **how)
        return cls(data, train, wrong, exams(data, absent=ABSENT, seed=seed, **how))

    def texts(self, rows: Sequence[int]) -> list[str]:
        """The passages of those rows."""
        return [self.data.passages[row].content for row in rows]


def others(
    data: ReadingData,
    questions: Sequence[Asked],
    *,
    count: int,
    encoder: Encoder,
    cache: EncodingCache,
    progress: bool | None,
) -> list[list[int]]:
    """For each question, rows of the passages nearest to it that neither belong to it nor hold an answer of it."""
    if not questions or count < 1 or len(data.passages) < 2:
        return [[] for _ in questions]
    contents = [passage.content for passage in data.passages]
    vectors = cache.encode(encoder, contents, progress=progress)
    asked_vectors = cache.encode(
        encoder, [asked.question for asked in questions], kind="query", progress=progress
    )
    found = []
    for asked, vector in zip(questions, asked_vectors, strict=True):
        scores = vectors @ vector  # [N]
        ranked = np.argsort(-scores, kind="stable")[: 4 * count + 8].tolist()
        wrong = (
            row
            for row in ranked
            if row not in asked.passages
            and row not in asked.related
            and not holds_answer(contents[row], asked.answers or ())
        )
        found.append([row for row, _ in zip(wrong, range(count), strict=False)])
    return found


def exams(
    data: ReadingData,
    *,
    absent: float,
    seed: int,
    encoder: Encoder,
    cache: EncodingCache,
    progress: bool | None,
) -> list[Exam]:
    """Held-out questions among other passages; where all have an answer, a share ``absent`` without their own."""
    held = list(data.splits.get("dev", ()))
    draw = np.random.default_rng(seed)
    chosen = [held[at] for at in sorted(draw.permutation(len(held))[:EXAMS].tolist())]
    made = []
    if not all(asked.answered for asked in held):
        absent = 0.0  # there are questions enough without an answer
    found = others(data, chosen, count=EXAM_PASSAGES, encoder=encoder, cache=cache, progress=progress)
    for asked, wrong in zip(chosen, found, strict=True):
        withheld = bool(wrong) and (not asked.passages or (asked.answered and draw.random() < absent))
        own = [] if withheld else list(asked.passages[:1])
        rows = [*own, *wrong][:EXAM_PASSAGES]
        if rows:
            made.append(Exam(asked, rows, asked.answered and not withheld))
    return made
