"""The trained module as plain arrays: a query is embedded and routed in microseconds, without torch.

The same numbers as ``module.py`` up to rounding (n texts, m width, B branches, H heights, b beam).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from palmette.methods.paths.module import Paths

__all__ = ["Leaves", "Router"]

WIDER = 2
"""How many more leaves a beam finds, below the root, than are then put in order."""
PART = 64
"""Texts whose beams are held at a time."""

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


class Leaves(NamedTuple):
    """The likeliest leaves of texts, best first: numbers [n, β] and probabilities [n, β]."""

    leaves: Ints
    probabilities: Floats


class Router:
    """Embeds and routes as a module does; made once, when it no longer learns."""

    def __init__(self, module: Paths) -> None:
        def plain(tensor: Tensor) -> Floats:
            return np.ascontiguousarray(tensor.detach().cpu().numpy(), np.float32)

        indexer = module.indexer
        self.branches, self.height = indexer.branches, indexer.height
        self.adapter, self.centres = plain(module.adapter.T), plain(module.centres)
        self.nearness = module.config.nearness * module.config.sharpness
        self.inner, self.outer, self.bias = (
            [plain(p) for p in kind] for kind in (indexer.inner, indexer.outer, indexer.bias)
        )

    def embed(self, x: Floats) -> Floats:
        """Encoder embeddings [n, m] → [n, m], rows of length 1."""
        y = x + x @ self.adapter
        unit: Floats = y / np.maximum(np.sqrt(np.einsum("nm,nm->n", y, y)), 1e-12)[:, None]
        return unit

    def beam(self, x: Floats, beam: int) -> Leaves:
        """As ``Indexer.beam``: the β likeliest leaves of vectors [n, m]."""
        n, every = len(x), np.arange(len(x))[:, None]
        reached = np.ones((n, 1), np.float32)  # [n, b]
        path = np.zeros((n, 1, 0), np.int64)  # [n, b, h]
        for _ in range(self.height):
            p = self._children(x, path) * reached[..., None]  # [n, b, B]
            flat = p.reshape(n, -1)
            at = _best(flat, min(beam, flat.shape[1]))  # [n, b']
            reached = flat[every, at]
            path = np.concatenate([path[every, at // self.branches], (at % self.branches)[..., None]], axis=2)
        leaves = path @ self.branches ** np.arange(self.height - 1, -1, -1)
        return Leaves(leaves, reached)

    def ordered(self, x: Floats, beam: int) -> Leaves:
        """The leaves to visit, first ones first: of those in a beam, by log probability and nearness together.

        At one height all leaves are looked at, so that no beam leaves a near one out.
        """
        parts = [self._ordered(part, beam) for part in np.split(x, range(PART, len(x), PART))]
        return Leaves(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def _ordered(self, x: Floats, beam: int) -> Leaves:
        every = len(self.centres)
        found = self.beam(x, every if self.height == 1 else min(every, WIDER * beam))
        if self.nearness:
            near = np.take_along_axis(x @ self.centres.T, found.leaves, 1)
            score = np.log(np.maximum(found.probabilities, 1e-30)) + self.nearness * near
            order = np.argsort(-score, axis=1, kind="stable")
            found = Leaves(
                np.take_along_axis(found.leaves, order, 1), np.take_along_axis(found.probabilities, order, 1)
            )
        return Leaves(found.leaves[:, :beam], found.probabilities[:, :beam])

    def path_of(self, leaf: int) -> tuple[int, ...]:
        """The children that lead to a leaf."""
        return tuple(leaf // self.branches**h % self.branches for h in range(self.height - 1, -1, -1))

    def _children(self, x: Floats, path: Ints) -> Floats:
        """Probabilities of the children of each path [n, b, h]: [n, b, B]."""
        n, b, h = path.shape
        inner, outer, shift = self.inner[h], self.outer[h], self.branches * h
        # x = [one-hots of the path, the last turn first; text]: the one-hots only pick rows
        hot = path[..., ::-1] + self.branches * np.arange(h)  # [n, b, h]
        hidden = np.broadcast_to((x @ inner[shift:])[:, None], (n, b, inner.shape[1]))
        logits = np.broadcast_to((x @ outer[shift:] + self.bias[h])[:, None], (n, b, self.branches))
        for turn in range(h):
            hidden = hidden + inner[hot[..., turn]]
            logits = logits + outer[hot[..., turn]]
        logits = logits + np.maximum(hidden, 0) @ outer
        chances: Floats = np.exp(logits - logits.max(axis=2, keepdims=True))
        chances /= chances.sum(axis=2, keepdims=True)
        return chances


def _best(scores: Floats, count: int) -> Ints:
    """Places of the ``count`` largest of each row [n, c], largest first, equal ones by place."""
    if 4 * count >= scores.shape[1]:
        order: Ints = np.argsort(-scores, axis=1, kind="stable")[:, :count]
        return order
    some = np.sort(np.argpartition(-scores, count - 1, axis=1)[:, :count], axis=1)
    inside = np.argsort(-np.take_along_axis(scores, some, 1), axis=1, kind="stable")
    return np.take_along_axis(some, inside, 1)
