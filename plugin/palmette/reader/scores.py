"""Scores of candidates share one softmax over all passages of a question; "no answer" scores 0.

Spans and sentences both score w · x(passage) + …, with x measured by the frozen encoder and by words.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palmette.arrays import Floats
from palmette.encoder import Encoder
from palmette.lexical.analyser import LANGUAGE, analyser_of

NEVER = -1e4
"""Score of what is no candidate: exp of it is 0, and differences of two of them are finite."""
MEMORY = 32 << 20
"""Bytes of document vectors that are remembered: 21,845 of 384 numbers."""


def grouped_logsumexp(values: Tensor, groups: Tensor, count: int) -> Tensor:
    """[W] values, [W] their groups → [count] log Σ exp of each group; ``NEVER`` for a group without any."""
    highest = values.new_full((count,), NEVER).scatter_reduce(0, groups, values.detach(), "amax")
    sums = values.new_zeros(count).index_add(0, groups, (values - highest[groups]).exp())
    return torch.where(sums > 0, highest + sums.clamp_min(1e-30).log(), NEVER)


def reading_loss(every: Tensor, right: Tensor, questions: Tensor, count: int) -> Tensor:
    """[count] −log probability of the right candidates of each question, or of "no answer" where there are none.

    Args:
        every: [W] log Σ exp of the candidates of a window, or of one candidate.
        right: [W] log Σ exp of its right candidates, ``NEVER`` without any.
        questions: [W] question of each window.
        count: Number of questions.
    """
    spans = grouped_logsumexp(every, questions, count)
    total = torch.logaddexp(spans, torch.zeros_like(spans))  # "no answer" scores 0
    hit = grouped_logsumexp(right, questions, count)
    return total - torch.where(hit > NEVER / 2, hit, 0.0)


def minimise(weights: Tensor, loss: Callable[[], Tensor], steps: int = 100) -> None:
    """Minimise a loss over weights, in place, by L-BFGS."""
    weights.requires_grad_(True)
    search: Any = torch.optim.LBFGS([weights], max_iter=steps, line_search_fn="strong_wolfe")

    def step() -> float:
        search.zero_grad()
        value = loss()
        torch.autograd.backward(value)
        return float(value.detach())

    with torch.enable_grad():
        search.step(step)
    weights.requires_grad_(False).grad = None


def words_of(text: str) -> set[str]:
    """Distinct words of a text, as the lexical search counts them."""
    return {word.text for word in analyser_of(LANGUAGE).words(text)}


class UnitVectors:
    """Encoder vectors of length 1, with an LRU cache of document vectors; safe for several threads."""

    def __init__(self, encoder: Encoder, memory: int = MEMORY) -> None:
        self.encoder = encoder
        self._most = memory // (4 * encoder.dimension) if encoder.frozen else 0
        self._vectors: OrderedDict[bytes, Floats] = OrderedDict()  # the one used last comes last
        self._lock = threading.Lock()

    def documents(self, texts: Sequence[str], progress: bool | None = False) -> Floats:
        """[N, d] vectors of documents; known texts are not encoded again."""
        keys = [blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest() for text in texts]
        with self._lock:
            found = {key: self._vectors[key] for key in keys if key in self._vectors}
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in found}
        if missing:
            new = _unit(self.encoder.encode(list(missing.values()), progress=progress))
            found |= {
                key: vector.copy() for key, vector in zip(missing, new, strict=True)
            }  # a view keeps its batch
        with self._lock:
            for key, vector in found.items():
                self._vectors[key] = vector
                self._vectors.move_to_end(key)
            while len(self._vectors) > self._most:
                self._vectors.popitem(last=False)
        return np.array([found[key] for key in keys], np.float32).reshape(-1, self.encoder.dimension)

    def queries(self, texts: Sequence[str]) -> Floats:
        """[Q, d] vectors of questions."""
        return _unit(self.encoder.encode_queries(texts))


def _unit(vectors: Floats) -> Floats:
    scaled: Floats = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return scaled
