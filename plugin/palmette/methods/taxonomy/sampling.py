"""How training draws matches: all of them, one at random, preferably a far one, or a mix."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from palmette.errors import InputError
from palmette.methods.taxonomy.matches import Matches

__all__ = ["Sampler", "Stream"]

Rows = NDArray[np.int64]
Kind = Literal["every", "regular", "rare", "heavy-tail", "rebalanced"]

MOST = 64
"""Matches that ``every`` takes of one query at most; of more it draws this many, so that a batch stays a batch."""


@dataclass(frozen=True)
class Sampler:
    """Draws matches of each query.

    Attributes:
        matches: What there is to draw.
        kind: ``every`` takes all matches of a query, the others one: ``regular`` any of them, ``rare`` preferably one
            that few queries share (in proportion to 1/√frequency: the others are in every batch anyhow),
            ``heavy-tail`` one that is far (in proportion to its distance: the exact match never), ``rebalanced``
            mixes ``regular`` and ``heavy-tail``.
        share: Chance of a ``regular`` draw in the mix.
    """

    matches: Matches
    kind: Kind = "every"
    share: float = 0.03

    def __post_init__(self) -> None:
        if self.kind == "heavy-tail" and not (self.matches.distances > 0).any():
            raise InputError(
                "no match lies at a distance above 0: heavy-tail sampling has nothing to draw; give a hierarchy, "
                "or grades, or use another sampling"
            )

    def draw(self, queries: Rows, generator: torch.Generator) -> tuple[Rows, Rows]:
        """Matches of some queries: of each drawn one the query's place among them, ascending, and the document."""
        random = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
        if self.kind == "every":
            return self._every(queries, random)
        starts, ends = self.matches.starts[queries], self.matches.starts[queries + 1]
        low, high = self._sums[starts], self._sums[ends]
        kept = np.flatnonzero(high > low)
        wanted = (low + random.random(len(queries)) * (high - low))[kept]
        places = np.clip(np.searchsorted(self._sums, wanted, side="right") - 1, starts[kept], ends[kept] - 1)
        return kept, self.matches.documents[places].astype(np.int64)

    def _every(self, queries: Rows, random: np.random.Generator) -> tuple[Rows, Rows]:
        """All matches, or ``MOST`` of them at random."""
        sizes = self.matches.counts[queries]
        places, owner = self.matches.places(queries), np.repeat(np.arange(len(queries)), sizes)
        if len(queries) and sizes.max() > MOST:
            order = np.lexsort((random.random(len(owner)), owner))  # within each query at random
            rank = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
            kept = np.sort(order[rank < MOST])
            places, owner = places[kept], owner[kept]
        return owner, self.matches.documents[places].astype(np.int64)

    @cached_property
    def chances(self) -> NDArray[np.float64]:
        """[P] P(document | query) where one is drawn."""
        regular = self.matches.chances(np.ones(len(self.matches.documents)))
        if self.kind in ("regular", "every"):
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
        """[documents] log P(a query draws this document); of what is never drawn, that of one draw of all."""
        if self.kind == "every":
            taken = np.minimum(1.0, MOST / np.maximum(1, self.matches.counts))[self.matches.owners]  # [P]
            asked = np.bincount(self.matches.documents, weights=taken, minlength=self.matches.size)
            found = asked / max(1, len(self.matches))
        else:
            found = self.matches.frequencies(self.chances)
        least = 1 / max(1, len(self.matches.documents))
        return torch.from_numpy(np.log(np.where(found > 0, found, least)).astype(np.float32))


class Stream:
    """How often documents are drawn, counted batch by batch: for the correction where nobody has counted before.

    Args:
        size: How many documents there are.
    """

    def __init__(self, size: int) -> None:
        self.drawn = np.zeros(size)
        self.asked = 0

    def log_frequencies(self, documents: Rows, counts: Rows, asked: int) -> torch.Tensor:
        """[U] log P(a query draws this document) of a batch's documents, the batch included.

        Args:
            documents: [U] each once.
            counts: [U] how often the batch drew them.
            asked: Queries of the batch.
        """
        self.drawn[documents] += counts
        self.asked += asked
        return torch.from_numpy(np.log(self.drawn[documents] / self.asked).astype(np.float32))
