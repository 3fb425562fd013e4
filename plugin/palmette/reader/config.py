"""Options of the reader."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from palmette.config import Config
from palmette.errors import ConfigError
from palmette.training import TrainingConfig

__all__ = ["ReaderConfig", "ReaderTraining"]


class ReaderConfig(Config):
    """What reader to train, and how it reads."""

    unit: Literal["span", "sentence"] = "span"
    """What an answer is: a ``span`` of words, found by an encoder that reads question and passage together
    and is trained for it, or a whole ``sentence``, chosen by a few learned weights over the frozen
    encoder's similarities, which takes seconds and needs no answers to learn from.
    """
    max_length: Annotated[int, Field(ge=16, le=8192)] = 128
    """Tokens of question and passage together; longer passages are read in windows."""
    overlap: int = 32
    """Passage tokens that two neighbouring windows share."""
    max_answer: Annotated[int, Field(ge=1, le=1000)] = 30
    """Tokens of an answer at most."""
    max_question: Annotated[int, Field(ge=4, le=1000)] = 48
    """Tokens of a question that are read."""
    trained_layers: Annotated[int, Field(ge=0, le=1000)] | None = None
    """How many of the encoder's layers learn, from the top; ``None`` for all. Fewer train faster and make a
    smaller checkpoint. Word embeddings never learn.
    """
    dropout: Annotated[float, Field(ge=0, le=0.9)] = 0.1
    """Share of hidden values left out in training."""
    passages: Annotated[int, Field(ge=1, le=100)] = 1
    """Passages read for each training question: one that answers it, the others as a retriever finds them."""
    absent: Annotated[float, Field(ge=0, le=0.9)] = 0.15
    """Share of the training questions whose own passage is withheld, so that no answer is right."""

    def check(self) -> None:
        """Ranges, and that every answer lies whole in some window."""
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
