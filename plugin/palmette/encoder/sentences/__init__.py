"""Vectors of sentences in int8, with the characters that each sentence has in its text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import quantise


@dataclass(frozen=True, eq=False)
class Sentences:
    """Sentences of N texts and their vectors; text i has rows ``starts[i]`` to ``starts[i + 1]``.

    Attributes:
        vectors: [S, d] int8; times its scale, each has unit length.
        scales: [S] float32.
        spans: [S, 2] int32, the first character and the one after the last.
        starts: [N + 1] int64.
    """

    vectors: NDArray[np.int8]
    scales: NDArray[np.float32]
    spans: NDArray[np.int32]
    starts: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self.starts) - 1

    def floats(self) -> NDArray[np.float32]:
        """Return unit vectors [S, d]."""
        return self.vectors * self.scales[:, None]

    @classmethod
    def of(cls, rows: NDArray[Any], spans: NDArray[np.int32], starts: NDArray[np.int64]) -> Self:
        """Round vectors of any length to int8, unless they are, and scale them to unit length."""
        vectors: NDArray[np.int8] = rows if rows.dtype == np.int8 else quantise(rows)[0]
        squares = np.einsum("sd,sd->s", vectors, vectors, dtype=np.int32)
        return cls(vectors, (1 / np.sqrt(np.maximum(squares, 1))).astype(np.float32), spans, starts)

    def parts(self) -> list[bytes]:
        """Return each text's spans and vectors as bytes."""
        ends = zip(self.starts[:-1].tolist(), self.starts[1:].tolist(), strict=True)
        return [self.spans[a:b].tobytes() + self.vectors[a:b].tobytes() for a, b in ends]

    @classmethod
    def from_parts(cls, parts: Sequence[bytes], width: int) -> Self:
        """Join what :meth:`parts` returned of texts, whose vectors have ``width`` columns."""
        counts = [len(part) // (8 + width) for part in parts]
        each = list(zip(parts, counts, strict=True))
        spans = np.frombuffer(b"".join(part[: 8 * count] for part, count in each), np.int32)
        vectors = np.frombuffer(b"".join(part[8 * count :] for part, count in each), np.int8)
        return cls.of(vectors.reshape(-1, width), spans.reshape(-1, 2), np.cumsum([0, *counts], dtype=np.int64))


def whole_texts(texts: Sequence[str], pooled: NDArray[np.float32]) -> Sentences:
    """Return each text as its only sentence, with its own vector; a blank one has none."""
    spans = [(len(text) - len(text.lstrip()), len(text.rstrip())) for text in texts if text.strip()]
    filled = np.array([bool(text.strip()) for text in texts], np.bool_)
    return Sentences.of(pooled[filled], np.array(spans, np.int32).reshape(-1, 2), np.append(0, np.cumsum(filled)))
