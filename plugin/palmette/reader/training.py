"""Passages that training and validation questions are read in, and the measures of a validation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from palmette.arrays import best
from palmette.data.metrics import exact_match, f1, holds_answer
from palmette.encoder import Encoder
from palmette.encoder.cache import EncodingCache
from palmette.reader.answer import Answer, AnswerCandidates, answer_of
from palmette.reader.config import ReaderConfig
from palmette.reader.data import Example, ReadingData

HELD_OUT_QUESTIONS = 200
"""Held-out questions that a validation reads."""
PASSAGES_DURING_TRAINING = 3
"""Passages of a held-out question during training, chosen to include one of its own."""
MANY = 8
"""Passages of a held-out question for the calibration after training, as a retriever finds them."""
ABSENT = 0.3
"""Share of validation questions whose own passage is withheld, where all have an answer; least share of calibration
questions without an answer, from which the threshold is learned."""


class HeldOut(NamedTuple):
    """A held-out question, the rows of the passages it is read in, and whether those have an answer."""

    example: Example
    rows: Sequence[int]
    answered: bool


@dataclass(frozen=True)
class TrainingSet:
    """Questions and the passages that they are read in."""

    data: ReadingData
    train: Sequence[Example]
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
        """Retrieve the nearest wrong passages of every training question, and choose questions to validate with.

        From some of these the answering passage is withheld, so that no answer is right.
        """
        # 1. Near passages that do not answer a training question: more than one reading takes, to draw from.
        nearest = _Nearest(data, encoder, cache, progress)
        train, held_out = data.split("train"), data.splits.get("dev", ())
        negatives = 4 * (config.passages - 1) + 2 if config.passages > 1 or config.absent else 0
        # 2. Held-out questions, each with its own passage, or without it, among wrong ones.
        draw = np.random.default_rng(seed)
        chosen = [held_out[row] for row in sorted(draw.permutation(len(held_out))[:HELD_OUT_QUESTIONS].tolist())]
        absent = ABSENT if all(example.answered for example in held_out) else 0.0
        dev = []
        for example, wrong in zip(chosen, nearest(chosen, PASSAGES_DURING_TRAINING, wrong=True), strict=True):
            withheld = bool(wrong) and (not example.passages or (example.answered and draw.random() < absent))
            if rows := [*([] if withheld else example.passages[:1]), *wrong][:PASSAGES_DURING_TRAINING]:
                dev.append(HeldOut(example, rows, example.answered and not withheld))
        return cls(data, train, nearest(train, negatives, wrong=True), dev, _calibration(data, chosen, nearest, seed))

    def texts(self, rows: Sequence[int]) -> list[str]:
        """Contents of passages."""
        return [self.data.passages[row].content for row in rows]


@dataclass(frozen=True)
class _Nearest:
    """Finds the passages nearest to questions in the encoder's space, as rows, best first."""

    data: ReadingData
    encoder: Encoder
    cache: EncodingCache
    progress: bool | None

    def __call__(self, examples: Sequence[Example], count: int, *, wrong: bool = False) -> list[list[int]]:
        """Return ``count`` rows for each question; ``wrong`` leaves passages with an answer out."""
        data, cache = self.data, self.cache
        if not examples or count < 1 or (wrong and len(data.passages) < 2):
            return [[] for _ in examples]
        contents, questions = [passage.content for passage in data.passages], [item.question for item in examples]
        vectors = cache.encode(self.encoder, contents, progress=self.progress)
        queries = cache.encode(self.encoder, questions, kind="query", progress=self.progress)
        nearest, depth = [], 4 * count + 8 if wrong else count
        for example, query in zip(examples, queries, strict=True):
            rows = best(vectors @ query, depth).tolist()
            nearest.append([row for row in rows if not (wrong and answers(data, example, row))][:count])
        return nearest


def _calibration(data: ReadingData, chosen: Sequence[Example], nearest: _Nearest, seed: int) -> list[HeldOut]:
    """Return questions with the passages found for them, and some again without those that answer."""
    retrieved = [
        HeldOut(example, rows, example.answered and any(answers(data, example, row) for row in rows))
        for example, rows in zip(chosen, nearest(chosen, MANY), strict=True)
    ]
    answered = [item.example for item in retrieved if item.answered]
    missing = max(0, math.ceil((ABSENT * len(retrieved) - (len(retrieved) - len(answered))) / (1 - ABSENT)))
    order = np.random.default_rng(seed).permutation(len(answered))
    again = [answered[row] for row in sorted(order[:missing].tolist())]
    without = zip(again, nearest(again, MANY, wrong=True), strict=True)
    return [*retrieved, *(HeldOut(example, rows, False) for example, rows in without if rows)]


def answers(data: ReadingData, example: Example, row: int) -> bool:
    """Tell whether a passage belongs to a question, or holds one of its answers."""
    return row in example.passages or holds_answer(data.passages[row].content, example.answers or ())


Credit = Callable[[Answer, HeldOut], dict[str, float]]
"""Measures of an answer to an answerable question; the first one counts."""


def span_credit(answer: Answer, item: HeldOut) -> dict[str, float]:
    """F1 and exact match of a short answer."""
    accepted = item.example.answers or ()
    return {"f1": f1(answer.text, accepted), "em": exact_match(answer.text, accepted)}


def sentence_credit(answer: Answer, item: HeldOut) -> dict[str, float]:
    """Accuracy: a sentence holds an accepted answer or, if none is known, is of a passage that answers."""
    if item.example.answers is not None:
        return {"accuracy": float(holds_answer(answer.text, item.example.answers))}
    right = any(item.rows[support.passage] in item.example.passages for support in answer.supports[:1])
    return {"accuracy": float(right)}


def best_threshold(probabilities: Sequence[float], worth: Sequence[float], answerable: int) -> tuple[float, float]:
    """Threshold at which precision and recall of right answers balance best, and their harmonic mean there.

    Counting right answers alone would keep silent wherever one in two is wrong.

    Args:
        probabilities: Probability that a question has an answer, by question.
        worth: Credit of its best answer, 0 … 1.
        answerable: Number of questions that have an answer.
    """
    order = np.argsort(-np.asarray(probabilities), kind="stable")
    right = np.concatenate([[0.0], np.cumsum(np.asarray(worth, np.float64)[order])])  # of the n surest
    balance = 2 * right / np.maximum(1, np.arange(len(right)) + answerable)
    at = int(np.argmax(balance))
    bounds = np.concatenate([[1.0], np.asarray(probabilities, np.float64)[order], [0.0]])
    return float((bounds[at] + bounds[at + 1]) / 2), float(balance[at])


def examine(
    data: ReadingData, questions: Sequence[HeldOut], candidate_lists: Sequence[AnswerCandidates], credit: Credit
) -> dict[str, float]:
    """Best threshold, the mean credit of all held-out questions with it, and of those with an answer without it.

    Where no passage has an answer, giving none is right, and all else is wrong. The threshold maximises credit "of
    answers", which readers are compared by: it does not reward silence.
    """
    if not questions:
        return {}
    values = []
    for item, candidates in zip(questions, candidate_lists, strict=True):
        passages = [data.passages[row] for row in item.rows]
        values.append(credit(answer_of(item.example.question, candidates, passages, 0.0), item))
    name, probabilities = next(iter(values[0])), [1 - candidates.none for candidates in candidate_lists]
    answered = [item.answered for item in questions]
    worth = [value[name] * known for value, known in zip(values, answered, strict=True)]
    threshold, balance = best_threshold(probabilities, worth, sum(answered))
    credits = [
        value if probability >= threshold else float(not known)
        for known, probability, value in zip(answered, probabilities, worth, strict=True)
    ]
    each = [value for value, known in zip(values, answered, strict=True) if known]
    means = {f"{key} answered": float(np.mean([value[key] for value in each])) for key in (each or [{}])[0]}
    return {name: float(np.mean(credits)), "threshold": threshold, f"{name} of answers": balance, **means}
