"""Exact match, F1 and "no answer" on held-out questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from palmette.metrics import exact_match, f1, holds_answer
from palmette.reader.answer import Answer
from palmette.reader.lessons import Exam, Lessons
from palmette.reader.reading import Candidates, answer_of

__all__ = ["accuracy_of", "best_threshold", "examine", "f1_of"]

Credit = Callable[[Answer, Exam], dict[str, float]]
"""What an answer to an answerable question is worth, the measure to judge by first."""


def f1_of(answer: Answer, exam: Exam) -> dict[str, float]:
    """F1 and exact match, of a short answer."""
    accepted = exam.asked.answers or ()
    return {"f1": f1(answer.text, accepted), "em": exact_match(answer.text, accepted)}


def accuracy_of(answer: Answer, exam: Exam) -> dict[str, float]:
    """Whether a sentence holds an accepted answer or, where none are known, is of a passage that answers."""
    if exam.asked.answers is not None:
        return {"accuracy": float(holds_answer(answer.text, exam.asked.answers))}
    right = any(exam.rows[support.passage] in exam.asked.passages for support in answer.supports[:1])
    return {"accuracy": float(right)}


def best_threshold(there: Sequence[float], worth: Sequence[float], answerable: int) -> tuple[float, float]:
    """The threshold at which precision and recall of right answers balance best, and their harmonic mean there.

    Counting right answers alone would keep silent wherever one in two is wrong, which helps nobody who asks.

    Args:
        there: Of each question, the probability that there is an answer.
        worth: What its best answer is worth, 0 … 1.
        answerable: How many of the questions have an answer.
    """
    order = np.argsort(-np.asarray(there), kind="stable")
    right = np.concatenate([[0.0], np.cumsum(np.asarray(worth, np.float64)[order])])  # of the n surest
    balance = 2 * right / np.maximum(1, np.arange(len(right)) + answerable)
    best = int(np.argmax(balance))
    bounds = np.concatenate([[1.0], np.asarray(there, np.float64)[order], [0.0]])
    return float((bounds[best] + bounds[best + 1]) / 2), float(balance[best])


def examine(lessons: Lessons, found: Sequence[Candidates], credit: Credit) -> dict[str, float]:
    """The best threshold, the mean credit of all held-out questions with it, and of those with an answer without it.

    Where no passage has an answer, giving none is right, and all else is wrong. What the threshold is best by, and
    readers are compared by, is credit "of answers": it does not reward silence.
    """
    if not lessons.dev:
        return {}
    there, worth, each = [], [], []
    for exam, candidates in zip(lessons.dev, found, strict=True):
        passages = [lessons.data.passages[row] for row in exam.rows]
        values = credit(answer_of(exam.asked.question, candidates, passages, 0.0), exam)
        name = next(iter(values))
        there.append(1 - candidates.none)
        worth.append(values[name] if exam.answered else 0.0)
        if exam.answered:
            each.append(values)
    threshold, balance = best_threshold(there, worth, len(each))
    credits = [
        value if probability >= threshold else float(not exam.answered)
        for exam, probability, value in zip(lessons.dev, there, worth, strict=True)
    ]
    means = {f"{key} answered": float(np.mean([values[key] for values in each])) for key in (each or [{}])[0]}
    return {name: float(np.mean(credits)), "threshold": threshold, f"{name} of answers": balance, **means}
