"""How training draws matches: regular, heavy-tailed, or a mix."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from palmette.errors import InputError
from palmette.methods.taxonomy.matches import Matches

__all__ = ["Sampler"]

Rows = NDArray[np.int64]
Kind = Literal["regular", "heavy-tail", "rebalanced"]


@dataclass(frozen=True)
class Sampler:
    """Draws one match of each query.

    Attributes:
        matches: What there is to draw.
        kind: ``regular`` takes all matches of a query alike, ``heavy-tail`` in proportion to their distance
            (the exact match never), ``rebalanced`` either, by chance.
        share: Chance of a regular draw in the mix.
    """

    matches: Matches
    kind: Kind = "regular"
    share: float = 0.03

    def __post_init__(self) -> None:
        if self.kind == "heavy-tail" and not (self.matches.distances > 0).any():
            raise InputError(
                "no match lies at a distance above 0: heavy-tail sampling has nothing to draw; give a hierarchy, "
                "or grades, or use sampling='regular'"
            )

    def draw(self, queries: Rows, generator: torch.Generator) -> tuple[Rows, Rows]:
        """One match of each query: the places of queries that have one, and the documents drawn."""
        random = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
        starts, counts = self.matches.starts[queries], self.matches.counts[queries]
        places = starts + (random.random(len(queries)) * counts).astype(np.int64)
        if self.kind != "regular":
            low, high = self._sums[starts], self._sums[starts + counts]
            wanted = low + random.random(len(queries)) * (high - low)
            far = np.searchsorted(self._sums, wanted, side="right") - 1
            take = high > low if self.kind == "heavy-tail" else random.random(len(queries)) >= self.share
            keep = take & (high > low)
            places = np.where(keep, np.clip(far, starts, starts + counts - 1), places)
            if self.kind == "heavy-tail":
                kept = np.flatnonzero(keep)
                return kept, self.matches.documents[places[kept]].astype(np.int64)
        return np.arange(len(queries)), self.matches.documents[places].astype(np.int64)

    @cached_property
    def _sums(self) -> NDArray[np.float64]:
        """[P + 1] running sum of the far chances."""
        return np.concatenate([[0.0], np.cumsum(self.matches.chances(far=True))])

    @cached_property
    def log_frequencies(self) -> torch.Tensor:
        """[documents] log P(document) of a draw; of what is never drawn, that of one draw of all."""
        regular = self.matches.frequencies(self.matches.chances())
        if self.kind == "regular":
            found = regular
        else:
            far = self.matches.frequencies(self.matches.chances(far=True))
            share = 0.0 if self.kind == "heavy-tail" else self.share
            found = share * regular + (1 - share) * far
        least = 1 / max(1, len(self.matches.documents))
        return torch.from_numpy(np.log(np.maximum(found, least)).astype(np.float32))
