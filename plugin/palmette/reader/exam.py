"""Exact match, F1 and "no answer" on held-out questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from palmette.answers import exact_match, f1
from palmette.reader.lessons import Lessons
from palmette.reader.reading import Candidates, answer_of

__all__ = ["best_threshold", "examine"]

Reads = Callable[[Sequence[str], Sequence[Sequence[str]]], list[Candidates]]


def best_threshold(
    there: Sequence[float], said: Sequence[float], silent: Sequence[float]
) -> tuple[float, float]:
    """The threshold that gives the highest mean F1, and that mean.

    Args:
        there: Of each question, the probability that there is an answer.
        said: F1 if the best answer is given.
        silent: F1 if none is.
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


def examine(lessons: Lessons, reads: Reads) -> dict[str, float]:
    """F1 over all held-out questions, the threshold that gives it, and exact match and F1 of those with an answer.

    Where a passage withheld leaves a question without an answer, giving none is right.
    """
    if not lessons.dev:
        return {}
    found = reads(
        [exam.asked.question for exam in lessons.dev], [lessons.texts(exam.rows) for exam in lessons.dev]
    )
    there, said, silent, exact = [], [], [], []
    for exam, candidates in zip(lessons.dev, found, strict=True):
        passages = [lessons.data.passages[row] for row in exam.rows]
        answer = answer_of(exam.asked.question, candidates, passages, 0.0)
        there.append(1 - candidates.none)
        said.append(f1(answer.text, exam.answers))
        silent.append(f1("", exam.answers))
        exact.append(exact_match(answer.text, exam.answers))
    asked = np.array([bool(exam.answers) for exam in lessons.dev])
    threshold, reached = best_threshold(there, said, silent)
    metrics = {"f1": reached, "threshold": threshold}
    if asked.any():
        metrics |= {
            "f1 answered": float(np.mean(np.array(said)[asked])),
            "em answered": float(np.mean(np.array(exact)[asked])),
        }
    return metrics
