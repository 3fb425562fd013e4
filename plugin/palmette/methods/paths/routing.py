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
LEAST = np.float32(-69.08)
"""A log probability below which leaves are told apart by nearness alone."""
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
        self.adapter, self.centres = plain(module.adapter.T), plain(module.centres.T)
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
        found = self._beam(x, beam)
        return found._replace(probabilities=np.exp(found.probabilities))

    def _beam(self, x: Floats, beam: int) -> Leaves:
        """With the logs of their probabilities."""
        n, every = len(x), np.arange(len(x))[:, None]
        reached = np.zeros((n, 1), np.float32)  # [n, b]
        path = np.zeros((n, 1, 0), np.int64)  # [n, b, h]
        for _ in range(self.height):
            flat = (self._children(x, path) + reached[..., None]).reshape(n, -1)  # [n, b·B]
            at = _best(flat, min(beam, flat.shape[1]))  # [n, b']
            reached = flat[every, at]
            path = np.concatenate([path[every, at // self.branches], (at % self.branches)[..., None]], axis=2)
        leaves = path @ self.branches ** np.arange(self.height - 1, -1, -1)
        return Leaves(leaves, reached)

    def ordered(self, x: Floats, beam: int) -> Leaves:
        """The leaves to visit, first ones first: of those in a beam, by log probability and nearness together.

        At one height all leaves are looked at, so that no beam leaves a near one out.
        """
        parts = [self._ordered(x[start : start + PART], beam) for start in range(0, max(1, len(x)), PART)]
        leaves = np.concatenate([part.leaves for part in parts])
        return Leaves(leaves, np.exp(np.concatenate([part.probabilities for part in parts])))

    def _ordered(self, x: Floats, beam: int) -> Leaves:
        """With the logs of their probabilities."""
        if self.height == 1:
            logs = self._children(x, np.zeros((len(x), 1, 0), np.int64))[:, 0]  # [n, B]
            score = self._visited_first(logs, x @ self.centres) if self.nearness else logs
            leaves = _best(score, beam)
            return Leaves(leaves, np.take_along_axis(logs, leaves, 1))
        found = self._beam(x, min(self.centres.shape[1], WIDER * beam))
        if self.nearness:
            near = np.take_along_axis(x @ self.centres, found.leaves, 1)
            order = _best(self._visited_first(found.probabilities, near), beam)
            found = Leaves(
                np.take_along_axis(found.leaves, order, 1), np.take_along_axis(found.probabilities, order, 1)
            )
        return Leaves(found.leaves[:, :beam], found.probabilities[:, :beam])

    def visits(self, x: Floats, sizes: Ints, budget: float, needed: int, beam: int) -> Ints:
        """As :meth:`ordered` and a choice among them, for one vector [m] and one height; see ``route_loops.py``."""
        from palmette.methods.paths import route_loops

        nets = self.inner[0], self.outer[0], self.bias[0], self.centres
        leaves: Ints = route_loops.visits(
            x, *nets, np.float32(self.nearness), LEAST, sizes, float(budget), needed, beam
        )
        return leaves

    def _visited_first(self, logs: Floats, near: Floats) -> Floats:
        """What leaves to visit are put in order by: log probabilities and cosines → the same shape."""
        score: Floats = np.maximum(logs, LEAST) + self.nearness * near
        return score

    def path_of(self, leaf: int) -> tuple[int, ...]:
        """The children that lead to a leaf."""
        return tuple(leaf // self.branches**h % self.branches for h in range(self.height - 1, -1, -1))

    def _children(self, x: Floats, path: Ints) -> Floats:
        """Log probabilities of the children of each path [n, b, h]: [n, b, B]."""
        h = path.shape[2]
        inner, outer, shift = self.inner[h], self.outer[h], self.branches * h
        # x = [one-hots of the path, the last turn first; text]: the one-hots only pick rows
        hot = path[..., ::-1] + self.branches * np.arange(h)  # [n, b, h]
        hidden = (x @ inner[shift:])[:, None]  # [n, 1, h·B + m]
        logits = (x @ outer[shift:] + self.bias[h])[:, None]  # [n, 1, B]
        for turn in range(h):
            hidden = hidden + inner[hot[..., turn]]
            logits = logits + outer[hot[..., turn]]
        logits = logits + np.maximum(hidden, 0) @ outer
        logits = logits - logits.max(axis=2, keepdims=True)
        logs: Floats = logits - np.log(np.exp(logits).sum(axis=2, keepdims=True))
        return logs


def _best(scores: Floats, count: int) -> Ints:
    """Places of the ``count`` largest of each row [n, c], largest first; of those that equal the last, any."""
    if 4 * count >= scores.shape[1]:
        order: Ints = np.argsort(-scores, axis=1, kind="stable")[:, :count]
        return order
    some = np.sort(np.argpartition(-scores, count - 1, axis=1)[:, :count], axis=1)
    inside = np.argsort(-np.take_along_axis(scores, some, 1), axis=1, kind="stable")
    return np.take_along_axis(some, inside, 1)
