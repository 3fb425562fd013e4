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
Kind = Literal["regular", "rare", "heavy-tail", "rebalanced"]


@dataclass(frozen=True)
class Sampler:
    """Draws one match of each query.

    Attributes:
        matches: What there is to draw.
        kind: ``regular`` takes all matches of a query alike, ``rare`` favours those that few queries share (in
            proportion to 1/√frequency: the others are in every batch anyhow), ``heavy-tail`` those that are far (in
            proportion to their distance: the exact match never), ``rebalanced`` mixes the first and the last.
        share: Chance of a regular draw in the mix.
    """

    matches: Matches
    kind: Kind = "regular"
    share: float = 0.03

    def __post_init__(self) -> None:
        if self.kind == "heavy-tail" and not (self.matches.distances > 0).any():
            raise InputError(
                "no match lies at a distance above 0: heavy-tail sampling has nothing to draw; give a hierarchy, "
                "or grades, or use another sampling"
            )

    def draw(self, queries: Rows, generator: torch.Generator) -> tuple[Rows, Rows]:
        """One match of each query: the places of queries that have one to draw, and the documents drawn."""
        random = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
        starts, ends = self.matches.starts[queries], self.matches.starts[queries + 1]
        low, high = self._sums[starts], self._sums[ends]
        kept = np.flatnonzero(high > low)
        wanted = (low + random.random(len(queries)) * (high - low))[kept]
        places = np.clip(np.searchsorted(self._sums, wanted, side="right") - 1, starts[kept], ends[kept] - 1)
        return kept, self.matches.documents[places].astype(np.int64)

    @cached_property
    def chances(self) -> NDArray[np.float64]:
        """[P] P(document | query)."""
        regular = self.matches.chances(np.ones(len(self.matches.documents)))
        if self.kind == "regular":
            return regular
        if self.kind == "rare":
            frequency = self.matches.frequencies(regular)[self.matches.documents]
            return self.matches.chances(frequency**-0.5)
        far = self.matches.chances(self.matches.distances.astype(np.float64))
        if self.kind == "heavy-tail":
            return far
        stuck = (
            np.bincount(self.matches.owners, weights=far, minlength=len(self.matches)) == 0
        )  # nothing is far
        share = np.where(stuck, 1.0, self.share)[self.matches.owners]
        mixed: NDArray[np.float64] = share * regular + (1 - share) * far
        return mixed

    @cached_property
    def _sums(self) -> NDArray[np.float64]:
        """[P + 1] running sum of the chances."""
        return np.concatenate([[0.0], np.cumsum(self.chances)])

    @cached_property
    def log_frequencies(self) -> torch.Tensor:
        """[documents] log P(document) of a draw; of what is never drawn, that of one draw of all."""
        found = self.matches.frequencies(self.chances)
        least = 1 / max(1, len(self.matches.documents))
        return torch.from_numpy(np.log(np.where(found > 0, found, least)).astype(np.float32))
