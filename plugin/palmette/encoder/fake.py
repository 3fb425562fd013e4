"""A small, exact encoder for tests of palmette and of what is built on it."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import Floats, Mask
from palmette.config import check_range
from palmette.encoder.base import Encoder, Kind, Output
from palmette.encoder.states import States
from palmette.errors import ConfigError

_WORD = re.compile(r"\w+|[^\w\s]")


@lru_cache(maxsize=65_536)
def _signs(text: str, width: int) -> NDArray[np.int64]:
    """Draw a vector of ±1 from the text's hash: equal on every machine."""
    bits = np.frombuffer(hashlib.shake_256(text.encode()).digest(-(-width // 8)), np.uint8)
    return np.unpackbits(bits)[:width].astype(np.int64) * 2 - 1


@lru_cache(maxsize=65_536)
def _word(word: str, width: int) -> NDArray[np.int64]:
    """Sum the signs of a word and of its character trigrams, so that inflections are near each other."""
    marked = f"<{word}>"
    grams = {marked[i : i + 3] for i in range(len(marked) - 2)}
    return sum((_signs(gram, width) for gram in grams), _signs(word, width))


def _places(text: str) -> list[tuple[str, tuple[int, int]]]:
    """List words in lower case, and the characters where they are."""
    low = text.lower()
    words = [(match[0], match.span()) for match in _WORD.finditer(low)]
    if len(low) == len(text):
        return words
    of = [place for place, letter in enumerate(text) for _ in letter.lower()]  # a letter may become two
    return [(word, (of[begin], of[end - 1] + 1)) for word, (begin, end) in words]


class FakeEncoder(Encoder):
    """Deterministic encoder without weights: texts that share words or parts of words are near.

    Words become sums of hashed ±1 vectors; each layer blends a word with its neighbours; a leading token (as
    BERT's CLS) holds the mean of the layer below; the pooled vector is the words' mean, of unit length. It
    is integer arithmetic up to the last division, so that every platform gives the same bits.

    Args:
        dimension: Width of all states.
        num_layers: Layers after the embeddings.
        max_length: Tokens per text, the leading one included.
    """

    has_offsets = True

    def __init__(self, dimension: int = 32, *, num_layers: int = 3, max_length: int = 128) -> None:
        super().__init__()
        check_range("FakeEncoder", "dimension", dimension, 1, 65_536)
        check_range("FakeEncoder", "num_layers", num_layers, 1, 12)
        check_range("FakeEncoder", "max_length", max_length, 2)
        self.name = f"fake:{dimension}:{num_layers}"
        self.dimension = self.hidden_size = dimension
        self.num_layers, self.max_length = num_layers, max_length
        self.device, self.prompts = "cpu", {}
        facts = f"fake encoder 1\0{dimension}\0{num_layers}\0{max_length}"
        self.fingerprint = hashlib.sha256(facts.encode()).hexdigest()

    @classmethod
    def from_name(cls, name: str, **options: Any) -> FakeEncoder:
        """Read ``fake``, ``fake:DIMENSION`` or ``fake:DIMENSION:LAYERS``."""
        match = re.fullmatch(r"fake(?::(\d+))?(?::(\d+))?", name)
        if match is None:
            raise ConfigError(f"{name!r} is no fake encoder; write 'fake', 'fake:32' or 'fake:32:3'")
        return cls(int(match[1] or 32), num_layers=int(match[2] or 3), **options)

    def forward(  # noqa: D102
        self, texts: Sequence[str], kind: Kind, outputs: frozenset[Output], depth: int | None = None
    ) -> States:
        places = [_places(text)[: self.max_length - 1] or [("[empty]", (0, 0))] for text in texts]
        last = self.num_layers if depth is None else depth
        each = [self._text([word for word, _ in words], last) for words in places]
        layers = _padded([states for states, _ in each]).transpose(0, 2, 1, 3)  # [B, L + 1, 1 + T, d]
        pooled = [total / (math.sqrt(math.fsum(total * total)) or 1.0) for _, total in each]
        mask = _padded([np.ones(1 + len(words), np.bool_) for words in places])
        return States(
            pooled=np.array(pooled, np.float32) if "pooled" in outputs else None,
            tokens=layers[:, -1].copy() if "tokens" in outputs else None,
            layers=np.ascontiguousarray(layers) if "layers" in outputs else None,
            mask=mask if outputs - {"pooled"} else None,
            offsets=_padded([np.array([(0, 0), *(at for _, at in words)]) for words in places]),
        )

    def pool(self, tokens: Floats, mask: Mask) -> Floats:  # noqa: D102
        words = mask.copy()
        words[:, 0] = False  # the leading token
        sums = (tokens.astype(np.float64) * words[..., None]).sum(axis=1)
        return np.asarray(sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-300), np.float32)

    def count_tokens(self, texts: Sequence[str]) -> list[int]:  # noqa: D102
        return [len(_places(text)) for text in texts]

    def _text(self, words: list[str], last: int) -> tuple[Floats, NDArray[np.float64]]:
        """States up to layer ``last`` [1 + T, L + 1, d], and the sum of words there; layer ℓ is in units of 4^−ℓ."""
        state = np.stack([_word(word, self.dimension) for word in words])  # [T, d]
        layers = [np.vstack([_signs("[CLS]", self.dimension), state]) / 1.0]
        for layer in range(1, last + 1):
            summary = state.sum(axis=0) / (len(words) * 4 ** (layer - 1))
            padded = np.vstack([state[:1], state, state[-1:]])
            state = padded[:-2] + 2 * state + padded[2:]
            layers.append(np.vstack([summary, state / 4**layer]))
        return np.stack(layers, axis=1, dtype=np.float32, casting="same_kind"), state.sum(axis=0) / 4.0**last


def _padded(rows: list[NDArray[Any]]) -> NDArray[Any]:
    """Stack arrays [T, …] of different lengths, zeros after the shorter ones: [B, T, …]."""
    padded = np.zeros((len(rows), max(map(len, rows)), *rows[0].shape[1:]), rows[0].dtype)
    for out, row in zip(padded, rows, strict=True):
        out[: len(row)] = row
    return padded
