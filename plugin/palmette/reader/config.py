"""Options of the reader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from palmette.config import Config
from palmette.errors import ConfigError

TRAINING: Mapping[str, Any] = {
    "steps": 600,
    "batch_size": 16,
    "learning_rate": 2e-4,
    "weight_decay": 0.01,
    "warmup": 0.1,
    "decay": "linear",
}
"""Defaults of the training loop of spans: half an hour on one processor core."""


class ReaderConfig(Config):
    """Reader to train, and how it reads."""

    unit: Literal["span", "sentence"] = "span"
    """Unit of an answer: a ``span`` of words, found by a transformer that reads question and passage together and
    is trained on questions with answers, or a whole ``sentence``, chosen by six weights over the frozen encoder's
    similarities, which are fitted in seconds and need no answers to learn from.
    """
    model: str | None = None
    """A published question-answering transformer to read spans with (name or folder); ``None`` starts from the
    encoder's own transformer. Such a model answers with ``steps=0`` already.
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
    """TrainingResult layers of the transformer, from the top; ``None`` for all. Fewer train faster and make a smaller
    checkpoint. Word embeddings are never trained.
    """
    dropout: Annotated[float, Field(ge=0, le=0.9)] = 0.1
    """Share of hidden values left out in training."""
    passages: Annotated[int, Field(ge=1, le=100)] = 1
    """Passages read for each training question: one that answers it, the others as a retriever finds them."""
    absent: Annotated[float, Field(ge=0, le=0.9)] = 0.15
    """Share of the training questions whose own passage is withheld, so that no answer is right."""

    def check(self) -> None:
        """Refuse windows that would cut answers."""
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
