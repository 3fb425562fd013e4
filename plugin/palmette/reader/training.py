"""Passages that training and validation questions are read in, and the measures of a validation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from palmette.arrays import best
from palmette.encoder import Encoder
from palmette.encoder.cache import EncodingCache
from palmette.metrics import exact_match, f1, holds_answer
from palmette.reader.answer import Answer, Candidates, answer_of
from palmette.reader.config import ReaderConfig
from palmette.reader.data import Asked, ReadingData

HELD_OUT = 200
"""Held-out questions that a validation reads."""
FEW, MANY = 3, 8
"""Passages per held-out question: chosen ones during training, retrieved ones for calibration after it."""
ABSENT = 0.3
"""Share of validation questions whose own passage is withheld, where all have an answer; least share of calibration
questions without an answer, from which the threshold is learned."""


class HeldOut(NamedTuple):
    """A held-out question, the rows of the passages it is read in, and whether those have an answer."""

    asked: Asked
    rows: Sequence[int]
    answered: bool


@dataclass(frozen=True)
class TrainingSet:
    """Questions and the passages that they are read in."""

    data: ReadingData
    train: Sequence[Asked]
    negatives: Sequence[Sequence[int]]
    """For each training question, rows of passages that a retriever finds and that do not have the answer."""
    dev: Sequence[HeldOut]
    """Held-out questions among a few other passages, for validation."""
    calibration: Sequence[HeldOut] = ()
    """Held-out questions in the passages that a retriever finds for them, some of them once more without the passages
    that answer: of few passages those are always found, and nothing would show what no answer looks like.
    """

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
        """Retrieve the passages of every question."""

        def nearest(questions: Sequence[Asked], count: int, *, wrong: bool = False) -> list[list[int]]:
            """Rows of the nearest passages, best first, without answers if ``wrong``."""
            if not questions or count < 1 or (wrong and len(data.passages) < 2):
                return [[] for _ in questions]
            vectors = cache.encode(encoder, [one.content for one in data.passages], progress=progress)
            texts = [asked.question for asked in questions]
            queries = cache.encode(encoder, texts, kind="query", progress=progress)
            found, depth = [], 4 * count + 8 if wrong else count
            for asked, query in zip(questions, queries, strict=True):
                rows = best(vectors @ query, depth).tolist()
                found.append([row for row in rows if not (wrong and answers(data, asked, row))][:count])
            return found

        train, held = data.split("train"), data.splits.get("dev", ())
        count = 4 * (config.passages - 1) + 2 if config.passages > 1 or config.absent else 0
        draw = np.random.default_rng(seed)
        chosen = [held[at] for at in sorted(draw.permutation(len(held))[:HELD_OUT].tolist())]
        absent = ABSENT if all(asked.answered for asked in held) else 0.0
        dev = []
        for asked, wrong in zip(chosen, nearest(chosen, FEW, wrong=True), strict=True):
            withheld = bool(wrong) and (not asked.passages or (asked.answered and draw.random() < absent))
            if rows := [*([] if withheld else asked.passages[:1]), *wrong][:FEW]:
                dev.append(HeldOut(asked, rows, asked.answered and not withheld))
        found = [
            HeldOut(asked, rows, asked.answered and any(answers(data, asked, row) for row in rows))
            for asked, rows in zip(chosen, nearest(chosen, MANY), strict=True)
        ]
        there = [one.asked for one in found if one.answered]
        missing = max(0, math.ceil((ABSENT * len(found) - (len(found) - len(there))) / (1 - ABSENT)))
        order = np.random.default_rng(seed).permutation(len(there))
        again = [there[at] for at in sorted(order[:missing].tolist())]
        without = zip(again, nearest(again, MANY, wrong=True), strict=True)
        missed = [HeldOut(asked, rows, False) for asked, rows in without if rows]
        return cls(data, train, nearest(train, count, wrong=True), dev, [*found, *missed])

    def texts(self, rows: Sequence[int]) -> list[str]:
        """Contents of passages."""
        return [self.data.passages[row].content for row in rows]


def answers(data: ReadingData, asked: Asked, row: int) -> bool:
    """Tell whether a passage belongs to a question, or holds one of its answers."""
    return row in asked.passages or holds_answer(data.passages[row].content, asked.answers or ())


Credit = Callable[[Answer, HeldOut], dict[str, float]]
"""Measures of an answer to an answerable question; the first one counts."""


def span_credit(answer: Answer, held: HeldOut) -> dict[str, float]:
    """F1 and exact match of a short answer."""
    accepted = held.asked.answers or ()
    return {"f1": f1(answer.text, accepted), "em": exact_match(answer.text, accepted)}


def sentence_credit(answer: Answer, held: HeldOut) -> dict[str, float]:
    """Accuracy: a sentence holds an accepted answer or, if none is known, is of a passage that answers."""
    if held.asked.answers is not None:
        return {"accuracy": float(holds_answer(answer.text, held.asked.answers))}
    right = any(held.rows[support.passage] in held.asked.passages for support in answer.supports[:1])
    return {"accuracy": float(right)}


def best_threshold(there: Sequence[float], worth: Sequence[float], answerable: int) -> tuple[float, float]:
    """Threshold at which precision and recall of right answers balance best, and their harmonic mean there.

    Counting right answers alone would keep silent wherever one in two is wrong.

    Args:
        there: Probability that a question has an answer, by question.
        worth: Credit of its best answer, 0 … 1.
        answerable: Number of questions that have an answer.
    """
    order = np.argsort(-np.asarray(there), kind="stable")
    right = np.concatenate([[0.0], np.cumsum(np.asarray(worth, np.float64)[order])])  # of the n surest
    balance = 2 * right / np.maximum(1, np.arange(len(right)) + answerable)
    at = int(np.argmax(balance))
    bounds = np.concatenate([[1.0], np.asarray(there, np.float64)[order], [0.0]])
    return float((bounds[at] + bounds[at + 1]) / 2), float(balance[at])


def examine(
    data: ReadingData, questions: Sequence[HeldOut], found: Sequence[Candidates], credit: Credit
) -> dict[str, float]:
    """Best threshold, the mean credit of all held-out questions with it, and of those with an answer without it.

    Where no passage has an answer, giving none is right, and all else is wrong. The threshold maximises credit "of
    answers", which readers are compared by: it does not reward silence.
    """
    if not questions:
        return {}
    values = []
    for held, candidates in zip(questions, found, strict=True):
        passages = [data.passages[row] for row in held.rows]
        values.append(credit(answer_of(held.asked.question, candidates, passages, 0.0), held))
    name, there = next(iter(values[0])), [1 - one.none for one in found]
    answered = [held.answered for held in questions]
    worth = [value[name] * known for value, known in zip(values, answered, strict=True)]
    threshold, balance = best_threshold(there, worth, sum(answered))
    credits = [
        value if probability >= threshold else float(not known)
        for known, probability, value in zip(answered, there, worth, strict=True)
    ]
    each = [value for value, known in zip(values, answered, strict=True) if known]
    means = {f"{key} answered": float(np.mean([value[key] for value in each])) for key in (each or [{}])[0]}
    return {name: float(np.mean(credits)), "threshold": threshold, f"{name} of answers": balance, **means}
