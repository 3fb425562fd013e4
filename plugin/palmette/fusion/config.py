"""What a fusion is made of, and what may be asked of its searches."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from palmette.config import Config
from palmette.errors import ConfigError

__all__ = ["WINDOW", "FusionConfig", "FusionSearch"]


class FusionConfig(Config):
    """Who is fused, and how."""

    members: tuple[dict[str, Any], ...] = ()
    """What the members' own checkpoints say of them."""
    weights: tuple[float, ...] = ()
    """How much each counts; they add up to 1."""
    scales: tuple[float, ...] = ()
    """What each member's scores are divided by before they are added."""
    rule: Literal["scores", "ranks"] = "scores"
    """What is added: ``"scores"``, or ``"ranks"`` (reciprocal-rank fusion, without weights and scales)."""

    def check(self) -> None:
        """Two members at least, and a weight and a scale for each."""
        count = len(self.members)
        if count < 2 or len(self.weights) != count or len(self.scales) != count:
            raise ConfigError(
                f"a fusion needs two models or more, a weight and a scale for each; got {count} models"
            )
        if min(self.weights) < 0 or abs(sum(self.weights) - 1) > 1e-6 or min(self.scales) <= 0:
            raise ConfigError(f"a fusion's weights are 0 or more and add up to 1, got {self.weights}")


WINDOW = 100
"""Documents of each member that have a rank, if nothing else is asked for."""


class FusionSearch(Config):
    """Options of one search."""

    window: Annotated[int, Field(ge=1)] | None = None
    """How many documents of each member have a rank, in reciprocal-rank fusion (at least as many as asked
    for); by default 100.
    """
