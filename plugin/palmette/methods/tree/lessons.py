"""What a tree learns from: the pairs given, or questions made of its documents where the pairs teach nothing of them.

Pairs of some documents need not say anything of others. On SQuAD, whose held-out questions are of other articles than
those that train, a map learned from 7,110 pairs brings the cosine's nDCG@10 on dev from .769 to .770, one of as many
made questions to .784, and one of both to .778. Where pairs do teach (SciFact, MedQuAD: .14 and more), made questions
are not asked for, nor encoded.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from palmette.data import RetrievalData, with_made_queries
from palmette.errors import InputError
from palmette.held_out import HeldOut, best_places
from palmette.methods.tree.adapter import Adapter, learn_adapter
from palmette.methods.tree.config import TreeConfig
from palmette.methods.tree.splits import pooled
from palmette.pairs import EncodedPairs

__all__ = ["Made", "learn_space", "lessons"]

Made = Callable[[], EncodedPairs | None]

ENOUGH = 20
"""Held-out questions that can tell one from the other."""


def lessons(
    config: TreeConfig, data: RetrievalData, encode: Callable[[RetrievalData], EncodedPairs], seed: int
) -> tuple[EncodedPairs, Made | None]:
    """The pairs to learn from, and what makes others, should these teach nothing (``None``: nobody asks)."""
    if not data.labelled or config.learn_from == "labels":
        return encode(data), None
    if config.learn_from == "documents":
        return encode(with_made_queries(data, seed)), None

    def made() -> EncodedPairs | None:
        try:
            others = with_made_queries(data, seed)
        except InputError:  # texts too short to make questions of
            return None
        return encode(others)

    return encode(data), made


def learn_space(
    adapter: Adapter,
    pairs: EncodedPairs,
    made: Made | None,
    seed: int,
    progress: bool | None,
) -> EncodedPairs:
    """Learn the map from the pairs, or, where they teach nothing, from those that ``made`` gives; which taught it.

    A map is the best of several looks at the held-out questions, so that a gain over none must be two standard errors;
    of two maps that were chosen alike one is enough.
    """
    if made is None or pairs.dev is None:
        learn_adapter(adapter, pairs, seed, progress)
        return pairs
    without = _each(adapter, pairs, pairs.dev)
    learn_adapter(adapter, pairs, seed, progress)
    given = _each(adapter, pairs, pairs.dev)
    if len(without) < ENOUGH or _clear(given - without, 2):
        return pairs
    others = made()
    if others is None:
        return pairs
    other = Adapter(len(adapter.weight))
    learn_adapter(other, others, seed, progress)
    if not _clear(_each(other, pairs, pairs.dev) - given, 1):
        return pairs
    adapter.load_state_dict(other.state_dict())
    return others


@torch.no_grad()
def _each(adapter: Adapter, pairs: EncodedPairs, dev: HeldOut) -> NDArray[np.float64]:
    """nDCG@10 of the mapped cosines for every held-out question that has an answer."""
    mapped = pairs.held_out(lambda states: adapter(pooled(states)))
    return dev.each(best_places(*mapped, lambda q, d: q @ d.T))


def _clear(gain: NDArray[np.float64], errors: float) -> bool:
    """Whether a mean is above zero by more than so many of its standard errors."""
    return bool(gain.mean() > errors * gain.std() / np.sqrt(len(gain)))
