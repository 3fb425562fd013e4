"""Options of the reader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from palmette.config import Config, check_range
from palmette.errors import ConfigError
from palmette.training import TrainingConfig

__all__ = ["ReaderConfig", "ReaderTraining"]


@dataclass(frozen=True)
class ReaderConfig(Config):
    """What reader to train, and how it reads.

    Attributes:
        unit: What an answer is: a ``span`` of words, found by an encoder that reads question and passage together and
            is trained for it, or a whole ``sentence``, chosen by a few learned weights over the frozen encoder's
            similarities, which takes seconds and needs no answers to learn from.
        max_length: Tokens of question and passage together; longer passages are read in windows.
        overlap: Passage tokens that two neighbouring windows share.
        max_answer: Tokens of an answer at most.
        max_question: Tokens of a question that are read.
        trained_layers: How many of the encoder's layers learn, from the top; ``None`` for all. Fewer train faster and
            make a smaller checkpoint. Word embeddings never learn.
        dropout: Share of hidden values left out in training.
        passages: Passages read for each training question: one that answers it, the others as a retriever finds them.
        absent: Share of the training questions whose own passage is withheld, so that no answer is right.
    """

    unit: Literal["span", "sentence"] = "span"
    max_length: int = 128
    overlap: int = 32
    max_answer: int = 30
    max_question: int = 48
    trained_layers: int | None = None
    dropout: float = 0.1
    passages: int = 1
    absent: float = 0.15

    def check(self) -> None:
        """Ranges, and that every answer lies whole in some window."""
        for name, low, high in (
            ("max_length", 16, 8192),
            ("max_answer", 1, 1000),
            ("max_question", 4, 1000),
            ("trained_layers", 0, 1000),
            ("dropout", 0, 0.9),
            ("passages", 1, 100),
            ("absent", 0, 0.9),
        ):
            check_range("reader", name, getattr(self, name), low, high)
        if self.overlap < self.max_answer:
            raise ConfigError(
                f"reader: overlap={self.overlap} must be at least max_answer={self.max_answer}, "
                "or answers at the edge of a window are cut"
            )
        if self.max_length - self.max_question - 4 <= self.overlap:
            raise ConfigError(
                f"reader: max_length={self.max_length} leaves no room for a passage beside "
                f"max_question={self.max_question} and overlap={self.overlap}: raise it"
            )


@dataclass(frozen=True)
class ReaderTraining(TrainingConfig):
    """How a reader is trained; its pairs are questions.

    What one processor core does in half an hour, and what was measured.
    """

    steps: int = 600
    batch_size: int = 16
    learning_rate: float = 2e-4
    weight_decay: float = 0.01
    warmup: float = 0.1
    decay: Literal["cosine", "linear", "constant"] = "linear"
