"""The span reader: its network, its windows, and what trains it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from palmette.encoder import Encoder
from palmette.encoder.backbone import Backbone
from palmette.encoder.recent import Recent
from palmette.reader.config import ReaderConfig, ReaderTraining
from palmette.reader.exam import examine, f1_of
from palmette.reader.lessons import Lessons, answers
from palmette.reader.module import SpanModule
from palmette.reader.prior import described, learn
from palmette.reader.reading import Candidates, Reading, Seen, read
from palmette.reader.task import SpanTask
from palmette.reader.windows import Pairs

__all__ = ["SpanReading"]

Floats = NDArray[np.float32]


class SpanReading(Reading):
    """Finds spans with an encoder that reads question and passage together."""

    training = ReaderTraining
    module: SpanModule

    def __init__(self, config: ReaderConfig, encoder: Encoder) -> None:
        self.recent, backbone = Recent(encoder), Backbone.of(encoder)
        self.module = SpanModule(config, backbone)
        self.pairs = Pairs(
            copy.deepcopy(backbone.tokenizer), config
        )  # the encoder sets its own to other lengths

    def task(self, lessons: Lessons, progress: bool | None) -> SpanTask:  # noqa: D102
        return SpanTask(self.module, self.pairs, lessons)

    def candidates(self, questions: Sequence[str], passages: Sequence[Sequence[str]]) -> list[Candidates]:  # noqa: D102
        seen = read(self.module, self.pairs, questions, passages)
        if self.module.prior.silent:
            return [one.candidates() for one in seen]
        return self._weighed(seen, described(self.recent, questions, passages))

    def settle(self, lessons: Lessons, progress: bool | None) -> dict[str, float]:
        """Learn what speaks for a passage, and with that the threshold, from what is found for held-out questions."""
        exams = [*lessons.found, *lessons.missed]
        if not exams:
            return {}
        questions = [exam.asked.question for exam in exams]
        passages = [lessons.texts(exam.rows) for exam in exams]
        seen = read(self.module.eval(), self.pairs, questions, passages)
        signs = described(self.recent, questions, passages, progress)
        totals = [one.sums(len(some)) for one, some in zip(seen, passages, strict=True)]
        right = [
            np.array([exam.answered and answers(lessons.data, exam.asked, row) for row in exam.rows], bool)
            for exam in exams
        ]
        learn(self.module.prior, totals, signs, right)
        return examine(replace(lessons, dev=exams), self._weighed(seen, signs), f1_of)

    def _weighed(self, seen: Sequence[Seen], signs: Sequence[Floats]) -> list[Candidates]:
        prior = self.module.prior
        device = prior.weigh.weight.device
        with torch.inference_mode():
            added = [prior(torch.from_numpy(some).to(device)).double().cpu().numpy() for some in signs]
        return [one.candidates(some) for one, some in zip(seen, added, strict=True)]

    def kept(self) -> dict[str, Tensor]:
        """Without those that are the encoder's own."""
        return self.module.kept()
