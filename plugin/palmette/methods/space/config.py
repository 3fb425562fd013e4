"""Options of dense retrieval: none so far."""

from __future__ import annotations

from palmette.config import Config


class SpaceConfig(Config):
    """Options of the model: none."""


class SpaceSearch(Config):
    """Options of one search: none."""
