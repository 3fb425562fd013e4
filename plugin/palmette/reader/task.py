"""What a span reader learns from: one softmax over all spans of a question's passages, and "no answer"."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from palmette.errors import InputError
from palmette.reader.exam import examine, f1_of
from palmette.reader.lessons import Lessons
from palmette.reader.module import SpanModule
from palmette.reader.reading import TOKENS, read
from palmette.reader.scores import reading_loss, right_spans
from palmette.reader.windows import Pairs, Window, batch_of, by_length
from palmette.training import Task

__all__ = ["SpanTask"]


@dataclass
class SpanTask(Task):
    """Trains a span reader.

    Attributes:
        module: What learns.
        pairs: Makes its windows.
        lessons: What it learns from.
    """

    module: SpanModule
    pairs: Pairs
    lessons: Lessons

    @property
    def metric(self) -> str:
        """See :func:`examine`."""
        return "f1 of answers"

    def size(self) -> int:
        """Training questions."""
        return len(self.lessons.train)

    def to(self, device: torch.device) -> None:
        """Windows are made on the CPU and sent batch by batch."""

    def loss(
        self, module: nn.Module, rows: NDArray[np.int64], generator: torch.Generator, progress: float
    ) -> Tensor:
        """Of a batch of questions, each read in one window of some passages."""
        draw = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
        windows: list[Window] = []
        gold: list[list[tuple[int, int]]] = []
        questions: list[int] = []
        for row in rows.tolist():
            lesson = self._lesson(row, draw)
            questions += [len(set(questions))] * len(lesson)
            windows += [window for window, _ in lesson]
            gold += [spans for _, spans in lesson]
        config = self.module.config
        if not windows:
            raise InputError(
                f"{self.lessons.data.name}: no answer to these questions fits: windows have {config.max_length} tokens "
                f"(max_length), answers at most {config.max_answer} (max_answer)"
            )
        device, order = self.module.device, []
        every, right = [], []
        for group in by_length(windows, TOKENS * (16 if device.type == "cuda" else 1)):
            scores = module(batch_of([windows[at] for at in group], self.pairs.padding, device))  # [W, T, L]
            every.append(scores.flatten(1).logsumexp(1))
            right.append(right_spans(scores, [gold[at] for at in group]))
            order += group
        owner = torch.tensor([questions[at] for at in order], device=device)
        return reading_loss(torch.cat(every), torch.cat(right), owner, len(set(questions)))

    def _lesson(self, row: int, draw: np.random.Generator) -> list[tuple[Window, list[tuple[int, int]]]]:
        """Windows to read for one question, and the right spans in each; none where its answer is in no window.

        One window is of a passage that the question belongs to, the others are any without an answer: of the same
        passage, or of others that look right.
        """
        asked, config = self.lessons.train[row], self.module.config
        others = list(self.lessons.others[row])
        withheld = bool(others) and asked.answered and draw.random() < config.absent
        own = [] if withheld or not asked.passages else [int(draw.choice(asked.passages))]
        more = config.passages - len(own)
        read = own + [others[at] for at in draw.permutation(len(others))[:more]]
        texts = self.lessons.texts(read)
        spans = asked.spans(own[0], texts[0]) if own else []
        right: list[tuple[Window, list[tuple[int, int]]]] = []
        rest: list[tuple[Window, list[tuple[int, int]]]] = []
        for window in self.pairs.windows(asked.question, texts):
            held = window.gold(spans, config.max_answer) if own and window.passage == 0 else []
            first = bool(held) if asked.answered else window.passage == 0
            (right if own and first else rest).append((window, held))
        if own and not right:
            return []
        chosen = [right[int(draw.integers(len(right)))]] if own else []
        return chosen + [rest[at] for at in draw.permutation(len(rest))[:more]]

    def validate(self, module: nn.Module) -> dict[str, float]:
        """See :func:`examine`."""
        questions = [exam.asked.question for exam in self.lessons.dev]
        passages = [self.lessons.texts(exam.rows) for exam in self.lessons.dev]
        found = [seen.candidates() for seen in read(self.module, self.pairs, questions, passages)]
        return examine(self.lessons, found, f1_of)
