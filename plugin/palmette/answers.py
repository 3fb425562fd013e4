"""Answers as short texts: SQuAD's normalisation, exact match, F1, and whether documents hold an answer.

An answer is compared with every accepted one, and the best counts. A question that no document answers has no
accepted answers; the empty answer is right for it, and any other one is wrong.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from palmette.errors import InputError

__all__ = ["answer_accuracy", "answer_rank", "exact_match", "f1", "holds_answer", "normalise"]

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Lower case, without ASCII punctuation and English articles, words parted by one space.

    >>> normalise("The  U.S. Army's")
    'us armys'
    """
    if not isinstance(text, str):
        raise InputError(f"answers and texts must be str, got {type(text).__name__} {text!r:.80}")
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, accepted: Iterable[str]) -> float:
    """1.0 if the answer is one of the accepted ones after normalisation, else 0.0."""
    return float(normalise(answer) in _references(accepted))


def f1(answer: str, accepted: Iterable[str]) -> float:
    """The best harmonic mean of precision and recall of words, over the accepted answers.

    >>> round(f1("in Paris, France", ["Paris", "Rome"]), 2)
    0.5
    """
    said = normalise(answer).split()
    return max(_overlap(said, reference.split()) for reference in _references(accepted))


def holds_answer(text: str, answers: Iterable[str]) -> bool:
    """Whether any of the answers occurs in the text, as whole words after normalisation.

    >>> holds_answer("It was in the U.S. then.", ["us"]), holds_answer("Just then.", ["us"])
    (True, False)
    """
    padded = f" {normalise(text)} "
    return any(said and f" {said} " in padded for said in map(normalise, _listed(answers, "answers")))


def answer_rank(texts: Iterable[str], answers: Sequence[str]) -> int | None:
    """The rank, from 1, of the first text that holds an answer; ``None`` where none does."""
    listed = enumerate(_listed(texts, "texts"), 1)
    return next((rank for rank, text in listed if holds_answer(text, answers)), None)


def answer_accuracy(ranks: Sequence[int | None], ns: Sequence[int]) -> dict[str, float]:
    """Share of questions whose first text with an answer is among the first n: ``{"accuracy@5": 0.8}``.

    Args:
        ranks: One of :func:`answer_rank` for each question.
        ns: How many texts are looked at.
    """
    found: NDArray[np.float64] = np.array([np.inf if rank is None else rank for rank in ranks])
    return {f"accuracy@{n}": float((found <= n).mean()) if len(found) else 0.0 for n in ns}


def _references(accepted: Iterable[str]) -> list[str]:
    """Normalised; without any, or where nothing is left of them, the empty answer."""
    return [text for text in map(normalise, _listed(accepted, "the accepted answers")) if text] or [""]


def _listed(texts: Iterable[str], what: str) -> Iterable[str]:
    """The same; a text by itself, which would be taken letter by letter, and what is no text, raise."""
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise InputError(
            f"{what} must be a list of str, got {type(texts).__name__} {texts!r:.80}: put it in a list"
        )
    return texts


def _overlap(said: list[str], reference: list[str]) -> float:
    if not said or not reference:
        return float(said == reference)
    common = sum((Counter(said) & Counter(reference)).values())
    return 2 * common / (len(said) + len(reference))
