"""The sentence reader: a few learned weights over the frozen encoder's similarities.

A sentence scores w · x + b, with x what is known of it (see :data:`FEATURES`); "no answer" scores 0, and one softmax
runs over all sentences of all passages. With so few weights some hundred questions are enough, and of those it need
only be known which passage answers them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from palmette.answers import holds_answer
from palmette.data.unlabelled import sentences
from palmette.encoder import Encoder
from palmette.encoder.recent import Recent
from palmette.reader.config import ReaderConfig
from palmette.reader.data import Asked
from palmette.reader.exam import accuracy_of, examine
from palmette.reader.lessons import Exam, Lessons
from palmette.reader.prior import unit, words_of
from palmette.reader.reading import Candidates, Reading
from palmette.reader.scores import NEVER, reading_loss
from palmette.training import Task, TrainingConfig

__all__ = ["FEATURES", "SentenceReading", "SentenceTraining"]

FEATURES = (
    "similarity of sentence and question",
    "similarity of passage and question",
    "share of the question's words in the sentence",
    "share of the question's words in the passage",
    "opens its passage",
)
START, BIAS = (5.0, 4.0, 1.0, 1.0, 0.0), -6.0
"""About what all-MiniLM-L6-v2 comes to on questions of one sentence: where learning begins."""
PULL = 0.01
"""How strongly it holds the weights: a hundred questions may say little about some of them."""
QUESTIONS = 200
"""Training questions looked at; more do not change so few weights."""

_HEADINGS = re.compile(r"(?:\s*#{1,6}[ \t][^\n]*(?:\n|\Z))+")

Floats = NDArray[np.float32]
Rows = NDArray[np.int64]
Marks = NDArray[np.bool_]


class SentenceTraining(TrainingConfig):
    """How a sentence reader is trained."""

    steps: int = 300
    batch_size: int = 64
    learning_rate: float = 0.1
    decay: Literal["cosine", "linear", "constant"] = "linear"


class Read(NamedTuple):
    """The S sentences of a question's passages.

    Attributes:
        passages: [S] positions of their passages.
        spans: [S, 2] their characters.
        features: [S, F].
    """

    passages: Rows
    spans: Rows
    features: Floats


def describe(
    encoder: Recent,
    questions: Sequence[str],
    passages: Sequence[Sequence[str]],
    progress: bool | None = None,
) -> list[Read]:
    """The features of all sentences; every text is encoded once."""
    cut = {text: _cut(text) for some in passages for text in some}
    texts = list(dict.fromkeys([*cut, *(text[a:b] for text, spans in cut.items() for a, b in spans)]))
    vectors = unit(encoder.encode(texts, progress=progress))  # [N, d]
    asked = unit(encoder.encode_queries(questions))  # [Q, d]
    row = {text: at for at, text in enumerate(texts)}
    found = []
    for question, query, some in zip(questions, asked, passages, strict=True):
        places = [(at, a, b, text) for at, text in enumerate(some) for a, b in cut[text]]
        share = _Shares(question, [text[a:b] for _, a, b, text in places])
        features = [
            (
                float(vectors[row[text[a:b]]] @ query),
                float(vectors[row[text]] @ query),
                share(text[a:b]),
                share(text),
                float(a == cut[text][0][0]),
            )
            for _, a, b, text in places
        ]
        found.append(
            Read(
                np.array([at for at, *_ in places], np.int64),
                np.array([(a, b) for _, a, b, _ in places], np.int64).reshape(-1, 2),
                np.array(features, np.float32).reshape(-1, len(FEATURES)),
            )
        )
    return found


def _cut(text: str) -> list[tuple[int, int]]:
    """The sentences' characters, without blanks at the ends, and without Markdown headings, which answer nothing."""
    found = []
    for start, end in sentences(text) or [(0, len(text))]:
        headings = _HEADINGS.match(text, start, end)
        start = headings.end() if headings else start
        if inner := text[start:end].strip():
            first = text.index(inner, start)
            found.append((first, first + len(inner)))
    return found or ([(0, len(text))] if text.strip() else [])


class _Shares:
    """How much of a question a text has; words count more that fewer of the sentences have."""

    def __init__(self, question: str, sentences: Sequence[str]) -> None:
        words, there = words_of(question), [words_of(sentence) for sentence in sentences]
        self.weights = {
            word: math.log(1 + len(there) / (0.5 + sum(word in some for some in there))) for word in words
        }
        self.total = sum(self.weights.values()) or 1.0

    def __call__(self, text: str) -> float:
        return sum(self.weights[word] for word in self.weights.keys() & words_of(text)) / self.total


class SentenceModule(nn.Module):
    """w · x + b."""

    def __init__(self) -> None:
        super().__init__()
        self.weigh = nn.Linear(len(FEATURES), 1)
        with torch.no_grad():
            self.weigh.weight.copy_(torch.tensor([START]))
            self.weigh.bias.fill_(BIAS)

    def forward(self, features: Tensor) -> Tensor:
        """[S, F] → [S] scores."""
        scores: Tensor = self.weigh(features).squeeze(-1).float()
        return scores


@dataclass
class SentenceTask(Task):
    """Trains the weights.

    Attributes:
        module: They.
        lessons: What they learn from.
        absent: Share of the questions whose own passages are withheld.
        seen: For each training question, the sentences of its own passages and of others.
        own: For each of these, whether it is of a passage that answers.
        right: And whether it answers itself; where that is not known, the same as ``own``.
        exams: The sentences of the held-out questions.
    """

    module: SentenceModule
    lessons: Lessons
    absent: float
    seen: Sequence[Read]
    own: Sequence[Marks]
    right: Sequence[Marks]
    exams: Sequence[Read]

    @property
    def metric(self) -> str:
        """The mean log-likelihood that training raises too: shares of some right answers would be too coarse."""
        return "log-likelihood"

    def size(self) -> int:
        """Training questions."""
        return len(self.seen)

    def to(self, device: torch.device) -> None:
        """Features are sent batch by batch."""

    def loss(
        self, module: nn.Module, rows: NDArray[np.int64], generator: torch.Generator, progress: float
    ) -> Tensor:
        """Of a batch of questions, some of them without the passages that answer.

        Of the sentences that may be right the best one counts: where only the passage is known, the others of it need
        not answer.
        """
        device = self.module.weigh.weight.device
        withheld = torch.rand(len(rows), generator=generator) < self.absent
        features, right, owner = [], [], []
        for place, row in enumerate(rows.tolist()):
            kept = ~self.own[row] if withheld[place] else np.ones(len(self.own[row]), bool)
            features.append(self.seen[row].features[kept])
            right.append(self.right[row][kept])
            owner.append(np.full(int(kept.sum()), place))
        scores = module(torch.from_numpy(np.concatenate(features)).to(device))  # [S]
        answers = torch.from_numpy(np.concatenate(right)).to(device)
        questions = torch.from_numpy(np.concatenate(owner)).to(device)
        right_scores = scores.masked_fill(~answers, NEVER)
        best = torch.full((len(rows),), NEVER, device=device)
        best = best.scatter_reduce(0, questions, right_scores.detach(), "amax")
        right_scores = right_scores.masked_fill(right_scores.detach() < best[questions], NEVER)
        pull = (self.module.weigh.weight - self.module.weigh.weight.new_tensor([START])).square().sum()
        return reading_loss(scores, right_scores, questions, len(rows)) + PULL * pull

    def validate(self, module: nn.Module) -> dict[str, float]:
        """The metric, and those of :func:`examine`."""
        if not self.exams:
            return {}
        found = [choose(self.module, read) for read in self.exams]
        right = [
            float(candidates.shares[self._right(exam, candidates)].max(initial=0))
            if exam.answered
            else candidates.none
            for exam, candidates in zip(self.lessons.dev, found, strict=True)
        ]
        likelihood = float(np.log(np.maximum(right, 1e-12)).mean())
        return {"log-likelihood": likelihood, **examine(self.lessons, found, accuracy_of)}

    def _right(self, exam: Exam, candidates: Candidates) -> Marks:
        """[C] which sentences answer a held-out question, as far as is known."""
        asked, texts = exam.asked, self.lessons.texts(exam.rows)
        if asked.answers is None:
            return np.isin(np.asarray(exam.rows)[candidates.passages], asked.passages)
        places = zip(candidates.passages, candidates.starts, candidates.ends, strict=True)
        return np.array(
            [holds_answer(texts[at][first:last], asked.answers) for at, first, last in places], bool
        )


class SentenceReading(Reading):
    """Chooses sentences by what a frozen encoder says of them."""

    training = SentenceTraining
    module: SentenceModule

    def __init__(self, config: ReaderConfig, encoder: Encoder) -> None:
        self.config, self.recent = config, Recent(encoder)
        self.module = SentenceModule()

    def task(self, lessons: Lessons, progress: bool | None) -> SentenceTask:  # noqa: D102
        asked = lessons.train[:QUESTIONS]
        rows = [
            [*one.passages, *others[: max(1, self.config.passages - 1)]]
            for one, others in zip(asked, lessons.others, strict=False)
        ]
        exams = lessons.dev
        questions = [*(one.question for one in asked), *(exam.asked.question for exam in exams)]
        texts = [lessons.texts(some) for some in [*rows, *(exam.rows for exam in exams)]]
        read = describe(self.recent, questions, texts, progress)
        seen = read[: len(asked)]
        own = [
            read.passages < (len(one.passages) if one.answered else 0)
            for one, read in zip(asked, seen, strict=True)
        ]
        right = [
            marks & _holding(one, lessons, some, read) if one.answers else marks
            for one, some, read, marks in zip(asked, rows, seen, own, strict=True)
        ]
        return SentenceTask(self.module, lessons, self.config.absent, seen, own, right, read[len(asked) :])

    def candidates(self, questions: Sequence[str], passages: Sequence[Sequence[str]]) -> list[Candidates]:  # noqa: D102
        return [choose(self.module, read) for read in describe(self.recent, questions, passages)]


def choose(module: SentenceModule, read: Read) -> Candidates:
    """One question's sentences as candidates, the most probable first."""
    with torch.inference_mode():
        features = torch.from_numpy(read.features).to(module.weigh.weight.device)
        scores = module(features).double().cpu().numpy()  # [S]
    total = float(np.logaddexp.reduce([0.0, *scores]))  # "no answer" scores 0
    order = np.argsort(-scores, kind="stable")
    starts, ends = read.spans[order].T
    return Candidates(read.passages[order], starts, ends, np.exp(scores[order] - total), math.exp(-total))


def _holding(asked: Asked, lessons: Lessons, rows: Sequence[int], read: Read) -> Marks:
    """[S] which sentences hold an accepted answer."""
    spans = [asked.spans(row, text) for row, text in zip(rows, lessons.texts(rows), strict=True)]
    held = [
        any(first <= start and end <= last for start, end in spans[passage])
        for passage, (first, last) in zip(read.passages.tolist(), read.spans.tolist(), strict=True)
    ]
    return np.array(held, bool)
