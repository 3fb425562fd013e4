"""From questions and passages to what training and validation read: who else is found, and who is held out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from palmette.metrics import holds_answer
from palmette.reader.config import ReaderConfig
from palmette.reader.data import Asked, ReadingData
from palmette.search.best import best

if TYPE_CHECKING:
    from palmette.cache import EncodingCache
    from palmette.encoder import Encoder

__all__ = ["Exam", "Lessons"]

EXAMS = 200
"""Held-out questions that a validation reads."""
FEW, MANY = 3, 8
"""How many passages each is read in: chosen ones while the network learns, those found for it when that is done."""
ABSENT = 0.3
"""Of the former, the share whose own passage is withheld, where all have an answer; of the latter, the least share
without an answer: what an answer is told from."""


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
        dev: Held-out questions among a few other passages.
        found: The same in the passages that a retriever finds for them.
        missed: Where nearly all of these have an answer, some of the questions without it.
    """

    data: ReadingData
    train: Sequence[Asked]
    others: Sequence[Sequence[int]]
    dev: Sequence[Exam]
    found: Sequence[Exam] = ()
    missed: Sequence[Exam] = ()

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
        dev = exams(data, absent=ABSENT, seed=seed, **how)
        found = retrieved(data, seed=seed, **how)
        return cls(data, train, wrong, dev, found, missed(data, found, seed=seed, **how))

    def texts(self, rows: Sequence[int]) -> list[str]:
        """The passages of those rows."""
        return [self.data.passages[row].content for row in rows]


def ranked(
    data: ReadingData,
    questions: Sequence[Asked],
    *,
    count: int,
    encoder: Encoder,
    cache: EncodingCache,
    progress: bool | None,
) -> list[list[int]]:
    """For each question, rows of the passages nearest to it, best first, without those related to it."""
    vectors = cache.encode(encoder, [passage.content for passage in data.passages], progress=progress)
    asked_vectors = cache.encode(
        encoder, [asked.question for asked in questions], kind="query", progress=progress
    )
    found = []
    for asked, vector in zip(questions, asked_vectors, strict=True):
        scores = vectors @ vector  # [N]
        nearest = best(scores, count + len(asked.related)).tolist()
        found.append([row for row in nearest if row not in asked.related][:count])
    return found


def others(
    data: ReadingData,
    questions: Sequence[Asked],
    *,
    count: int,
    **how: Any,
) -> list[list[int]]:
    """For each question, rows of the passages nearest to it that neither belong to it nor hold an answer of it."""
    if not questions or count < 1 or len(data.passages) < 2:
        return [[] for _ in questions]
    found = []
    for asked, rows in zip(questions, ranked(data, questions, count=4 * count + 8, **how), strict=True):
        wrong = (row for row in rows if not answers(data, asked, row))
        found.append([row for row, _ in zip(wrong, range(count), strict=False)])
    return found


def answers(data: ReadingData, asked: Asked, row: int) -> bool:
    """Whether a passage belongs to a question, or holds one of its answers."""
    return row in asked.passages or holds_answer(data.passages[row].content, asked.answers or ())


def drawn(data: ReadingData, draw: np.random.Generator) -> list[Asked]:
    """The held-out questions that a validation reads."""
    held = data.splits.get("dev", ())
    return [held[at] for at in sorted(draw.permutation(len(held))[:EXAMS].tolist())]


def exams(data: ReadingData, *, absent: float, seed: int, **how: Any) -> list[Exam]:
    """Held-out questions among other passages; where all have an answer, a share ``absent`` without their own."""
    if not all(asked.answered for asked in data.splits.get("dev", ())):
        absent = 0.0  # there are questions enough without an answer
    draw, made = np.random.default_rng(seed), []
    chosen = drawn(data, draw)
    for asked, wrong in zip(chosen, others(data, chosen, count=FEW, **how), strict=True):
        withheld = bool(wrong) and (not asked.passages or (asked.answered and draw.random() < absent))
        own = [] if withheld else list(asked.passages[:1])
        rows = [*own, *wrong][:FEW]
        if rows:
            made.append(Exam(asked, rows, asked.answered and not withheld))
    return made


def retrieved(data: ReadingData, *, seed: int, **how: Any) -> list[Exam]:
    """The same questions in the passages that are found for them, whatever these are."""
    chosen = drawn(data, np.random.default_rng(seed))
    found = ranked(data, chosen, count=MANY, **how) if chosen else []
    return [
        Exam(asked, rows, asked.answered and any(answers(data, asked, row) for row in rows))
        for asked, rows in zip(chosen, found, strict=True)
    ]


def missed(data: ReadingData, found: Sequence[Exam], *, seed: int, **how: Any) -> list[Exam]:
    """Questions of such exams once more, without the passages that answer: enough for a share ``ABSENT`` of all.

    Of few passages those are found every time, and nothing would tell what no answer looks like.
    """
    there = [exam.asked for exam in found if exam.answered]
    missing = math.ceil((ABSENT * len(found) - (len(found) - len(there))) / (1 - ABSENT))
    order = np.random.default_rng(seed).permutation(len(there))
    again = [there[at] for at in sorted(order[: max(0, missing)].tolist())]
    wrong = others(data, again, count=MANY, **how)
    return [Exam(asked, rows, False) for asked, rows in zip(again, wrong, strict=True) if rows]
