"""The sentence reader: six weights over the frozen encoder's similarities, fitted by L-BFGS.

A sentence scores w · x + b, with x as in :data:`FEATURES`; "no answer" scores 0, and one softmax runs over all
sentences of all passages::

    P(sentence s) = exp(w · x_s + b) / (1 + Σ over all sentences of exp(w · x + b))

Some hundred questions are enough, of which only the answering passages need be known.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from palmette.arrays import Floats, Rows
from palmette.encoder import Encoder
from palmette.encoder.sentences.splitting import split_sentences
from palmette.reader.answer import AnswerCandidates
from palmette.reader.blocks import SHORTEST_ANSWER, trimmed
from palmette.reader.config import ReaderConfig
from palmette.reader.rows import heads_of
from palmette.reader.scores import NEVER, UnitVectors, words_of
from palmette.reader.training import TrainingSet, examine, sentence_credit
from palmette.sources.blocks import labels_of
from palmette.training.config import TrainingConfig
from palmette.types import SentenceVectors

if TYPE_CHECKING:
    from torch import Tensor

    from palmette.training.loop import TrainingResult

FEATURES = (
    "similarity of sentence and question",
    "similarity of passage and question",
    "share of the question's words in the sentence",
    "share of the question's words in the passage",
    "opens its passage",
)
START = (5.0, 4.0, 3.0, 1.0, 0.0, -6.0)
"""Weights and bias before training, round numbers that suit all-MiniLM-L6-v2 (benchmarks/results/answers.md)."""
WEIGHT_PENALTY = 0.01
"""Penalty of weights far from these: a hundred questions may say little about some of them."""
MOST_QUESTIONS = 200
"""Training questions used; more do not change six weights."""


class SentenceModule:
    """Chooses sentences by the frozen encoder's similarities and by words; only to fit its weights needs torch."""

    metric = "accuracy of answers"

    def __init__(self, config: ReaderConfig, encoder: Encoder) -> None:
        self.config, self.vectors = config, UnitVectors(encoder)
        self.weights = np.array(START, np.float32)
        """Weights of the features, and the bias."""

    def kept(self) -> dict[str, Any]:
        """Weights that a checkpoint stores."""
        return {"bias_layer.weight": self.weights[None, :-1], "bias_layer.bias": self.weights[-1:]}

    def load(self, weights: Mapping[str, Any]) -> None:
        """Load the weights of a checkpoint; RuntimeError where their shapes differ."""
        for name, own in self.kept().items():
            if weights[name].shape != own.shape:
                raise RuntimeError(f"{name} is {[*weights[name].shape]} instead of {[*own.shape]}")
        self.weights = np.array([*weights["bias_layer.weight"][0], *weights["bias_layer.bias"]], np.float32)

    def fit(
        self, training_set: TrainingSet, training: TrainingConfig, *, progress: bool | None, **run: Any
    ) -> TrainingResult:
        """Fit the weights to the most probable right sentence of each question, with and without its passages."""
        import torch

        from palmette.reader.losses import minimise, reading_loss
        from palmette.training.loop import TrainingResult

        started, examples = time.monotonic(), training_set.train[:MOST_QUESTIONS]
        # 1. Each question with its own passages and wrong ones: the sentences' features, and which of them are right.
        most = max(1, self.config.passages - 1)
        rows = [
            [*example.passages, *rest[:most]] for example, rest in zip(examples, training_set.negatives, strict=False)
        ]
        texts = [training_set.texts(passage_rows) for passage_rows in rows]
        read, own, right = self.read([example.question for example in examples], texts, progress=progress), [], []
        for example, (places, _), row, passages in zip(examples, read, rows, texts, strict=True):
            spans = [example.spans(at, text) for at, text in zip(row, passages, strict=True)]
            holds_answer = [  # where no answer is known, every sentence of its passages may be right
                not example.answers or any(first <= start and end <= last for start, end in spans[at])
                for at, first, last in places.tolist()
            ]
            own.append(places[:, 0] < (len(example.passages) if example.answered else 0))
            right.append(own[-1] & np.array(holds_answer, bool))
        # 2. One row for each sentence of all questions.
        x = torch.from_numpy(np.concatenate([features for _, features in read])).double()  # [S, F]
        withheld, answers = (torch.from_numpy(np.concatenate(marks)) for marks in (own, right))
        owner = torch.from_numpy(np.repeat(np.arange(len(read)), [len(places) for places, _ in read]))
        start, count, absent = torch.tensor(START, dtype=torch.float64), len(read), self.config.absent
        weights = start.clone()

        def loss() -> Tensor:
            scores = x @ weights[:-1] + weights[-1]  # [S]
            hits = scores.masked_fill(~answers, NEVER)
            best = scores.detach().new_full((count,), NEVER).scatter_reduce(0, owner, hits.detach(), "amax")
            hits = hits.masked_fill(hits.detach() < best[owner], NEVER)  # the others need not answer
            nothing, others = torch.full_like(scores, NEVER), scores.masked_fill(withheld, NEVER)
            answered = (1 - absent) * reading_loss(scores, hits, owner, count)
            missed = absent * reading_loss(others, nothing, owner, count)
            return (answered + missed).mean() + WEIGHT_PENALTY * (weights - start)[:-1].square().sum()

        # 3. The weights under which the best right sentence is most probable and, with a question's own passages
        # withheld, no answer is.
        minimise(weights, loss, training.steps)
        self.weights = weights.numpy().astype(np.float32)
        # 4. The threshold and the accuracy on held-out questions.
        dev = training_set.dev
        candidates = self.candidates(
            [example.example.question for example in dev], [training_set.texts(example.rows) for example in dev]
        )
        metrics = examine(training_set.data, dev, candidates, sentence_credit)
        return TrainingResult(training.steps, training.steps, metrics, time.monotonic() - started)

    def candidates(
        self,
        questions: Sequence[str],
        passages: Sequence[Sequence[str]],
        stored: Mapping[str, SentenceVectors] = MappingProxyType({}),
    ) -> list[AnswerCandidates]:
        """All sentences of each question's passages, with probabilities; ``stored``: vectors of passages, by text."""
        weights, candidates = self.weights.astype(np.float64), list[AnswerCandidates]()
        for places, features in self.read(questions, passages, stored):
            scores = features @ weights[:-1] + weights[-1]  # [S]
            total = float(np.logaddexp.reduce([0.0, *scores]))  # "no answer" scores 0
            candidates.append(AnswerCandidates.of(places, scores, total))
        return candidates

    def read(
        self,
        questions: Sequence[str],
        passages: Sequence[Sequence[str]],
        stored: Mapping[str, SentenceVectors] = MappingProxyType({}),
        progress: bool | None = None,
    ) -> list[tuple[Rows, Floats]]:
        """Places (passage, first, last character) [S, 3] and features [S, F] of each question's sentences."""
        # 1. Passages and their sentences, each passage encoded once, unless its vectors are stored.
        cut = {text: cut_sentences(text) for question_passages in passages for text in question_passages}
        vectors = self.vectors.with_sentences(cut, stored, progress)
        texts = {*cut, *(text[a:b] for text, spans in cut.items() for a, b in spans)}
        words, readings = {text: words_of(text) for text in texts}, []
        for question, query, question_passages in zip(
            questions, self.vectors.queries(questions), passages, strict=True
        ):
            # 2. The question's words, of which those count more that fewer of the sentences have.
            places = [(at, a, b, text) for at, text in enumerate(question_passages) for a, b in cut[text]]
            sentence_words = [words[text[a:b]] for _, a, b, text in places]
            frequencies = Counter(word for sentence in sentence_words for word in sentence)
            word_weights = {
                word: math.log(1 + len(sentence_words) / (0.5 + frequencies[word])) for word in words_of(question)
            }
            total = sum(word_weights.values()) or 1.0
            # 3. The share of that weight in each sentence and passage, and their cosines with the question.
            share = {
                text: sum(word_weights[word] for word in word_weights.keys() & words[text]) / total
                for text in {*question_passages, *(text[a:b] for _, a, b, text in places)}
            }
            near = {text: vectors[text] @ query for text in question_passages}  # the passage, then its sentences
            features = [
                (sentence, near[text][0], share[text[a:b]], share[text], a == cut[text][0][0])
                for text in question_passages
                for (a, b), sentence in zip(cut[text], near[text][1:], strict=True)
            ]
            rows = np.array([place[:3] for place in places], np.int64).reshape(-1, 3)
            readings.append((rows, np.array(features, np.float32).reshape(-1, len(FEATURES))))
        return readings


def cut_sentences(text: str) -> list[tuple[int, int]]:
    """Characters of the sentences, without what answers nothing: blanks, headings, labels, heads of tables."""
    labels = [*labels_of(text), *heads_of(text)]
    spans = [trimmed(text, labels, *span) for span in split_sentences(text, SHORTEST_ANSWER)]
    return [span for span in spans if span[0] < span[1]] or ([(0, len(text))] if text.strip() else [])
