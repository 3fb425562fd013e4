"""The span reader: its network, its windows, and what trains it."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from torch import Tensor

from palmette.encoder import Encoder
from palmette.encoder.backbone import Backbone
from palmette.reader.config import ReaderConfig, ReaderTraining
from palmette.reader.lessons import Lessons
from palmette.reader.module import SpanModule
from palmette.reader.reading import Candidates, Reading, read
from palmette.reader.task import SpanTask
from palmette.reader.windows import Pairs

__all__ = ["SpanReading"]


class SpanReading(Reading):
    """Finds spans with an encoder that reads question and passage together."""

    training = ReaderTraining
    module: SpanModule

    def __init__(self, config: ReaderConfig, encoder: Encoder) -> None:
        backbone = Backbone.of(encoder)
        self.module = SpanModule(config, backbone)
        self.pairs = Pairs(
            copy.deepcopy(backbone.tokenizer), config
        )  # the encoder sets its own to other lengths

    def task(self, lessons: Lessons, progress: bool | None) -> SpanTask:  # noqa: D102
        return SpanTask(self.module, self.pairs, lessons)

    def candidates(self, questions: Sequence[str], passages: Sequence[Sequence[str]]) -> list[Candidates]:  # noqa: D102
        return read(self.module, self.pairs, questions, passages)

    def kept(self) -> dict[str, Tensor]:
        """Without those that are the encoder's own."""
        return self.module.kept()
