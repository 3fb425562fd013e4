"""Exact match, F1 and "no answer" on held-out questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from palmette.answers import exact_match, f1, holds_answer
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


def best_threshold(
    there: Sequence[float], said: Sequence[float], silent: Sequence[float]
) -> tuple[float, float]:
    """The threshold that gives the highest mean credit, and that mean.

    Args:
        there: Of each question, the probability that there is an answer.
        said: The credit if the best answer is given.
        silent: The credit if none is.
    """
    order = np.argsort(-np.asarray(there), kind="stable")
    gain = np.asarray(said, np.float64)[order] - np.asarray(silent, np.float64)[order]
    means = np.concatenate([[0.0], np.cumsum(gain)]) + float(
        np.sum(silent)
    )  # answering the n surest questions
    best = int(np.argmax(means))
    ordered = np.asarray(there, np.float64)[order]
    bounds = np.concatenate([[1.0], ordered, [0.0]])
    return float((bounds[best] + bounds[best + 1]) / 2), float(means[best] / max(1, len(order)))


def examine(lessons: Lessons, found: Sequence[Candidates], credit: Credit) -> dict[str, float]:
    """The mean credit over all held-out questions, the threshold that gives it, and the means of those with an answer.

    Where no passage has an answer, giving none is right, and all else is wrong.
    """
    if not lessons.dev:
        return {}
    there, said, worth = [], [], []
    for exam, candidates in zip(lessons.dev, found, strict=True):
        passages = [lessons.data.passages[row] for row in exam.rows]
        answer = answer_of(exam.asked.question, candidates, passages, 0.0)
        there.append(1 - candidates.none)
        value = credit(answer, exam)
        said.append(next(iter(value.values())) if exam.answered else float(not answer))
        if exam.answered:
            worth.append(value)
        first = next(iter(value))
    threshold, reached = best_threshold(there, said, [float(not exam.answered) for exam in lessons.dev])
    means = {
        f"{name} answered": float(np.mean([value[name] for value in worth])) for name in (worth or [{}])[0]
    }
    return {first: reached, "threshold": threshold, **means}
