"""How much words count beside a method's own score."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from palmette.config import Config
from palmette.errors import ConfigError

__all__ = ["DEFAULT", "Lexical", "Mix", "check_lexical", "options_key"]

Numbers = NDArray[Any]

Lexical = float | Literal["auto"]
"""The weight of words in a search, 0 … 1, or ``"auto"`` for the model's own."""

DEFAULT: Lexical = "auto"
"""What a search uses that is not told; ``palmette.evaluate`` measures methods alone."""


class Mix(Config):
    """A document's score is ``(1 − weight) · method + weight · scale · words^1.5``.

    ``method`` is the method's score and ``words`` the share of the query's weight in words that the document
    answers, 0 … 1. Neither depends on what else is found, so a score means the same in every search. The power
    lets words count where they agree as a whole, and little where a few happen to occur.
    """

    weight: Annotated[float, Field(ge=0, le=1)] = 0.5
    """How much words count, 0 … 1."""
    scale: Annotated[float, Field(gt=0)] = 1.0
    """What full agreement in words is worth in the method's units, so that a weight of one half is a balance.
    """

    def score(self, method: Numbers, words: Numbers) -> Numbers:
        """The mixed score, in float64."""
        words = np.asarray(words, np.float64)
        mixed: Numbers = (1 - self.weight) * np.asarray(method, np.float64) + self.worth(words) * words
        return mixed

    def needed(self, method: float, score: float) -> float:
        """A share of words with less than which a method's score does not reach ``score``, or hardly less."""
        lack = max(0.0, score - (1 - self.weight) * method)
        return float((1 - 1e-5) * (lack / (self.weight * self.scale)) ** (2 / 3))

    def worth(self, words: Numbers) -> Numbers:
        """What each part of the words' share adds: parts of a share times this add up to its part of the score."""
        worth: Numbers = self.weight * self.scale * np.sqrt(words)
        return worth


def check_lexical(value: object) -> Lexical:
    """A number between 0 and 1, or ``"auto"``."""
    if value == "auto":
        return "auto"
    if isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool):
        weight = float(value)
        if 0 <= weight <= 1:
            return weight
    raise ConfigError(
        f"lexical must be a number from 0 (no words) to 1 (words alone), or 'auto'; got {value!r}"
    )


def options_key(options: Config) -> str:
    """A name for search options: empty for the defaults, else what differs from them, as JSON."""
    plain = type(options)().to_dict()
    differing = {name: value for name, value in options.to_dict().items() if value != plain[name]}
    return json.dumps(differing, sort_keys=True) if differing else ""
