"""Encoders that give one vector a text and no token states: objects of frameworks, functions, servers."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from palmette.arrays import Floats, unit_rows
from palmette.encoder.base import Encoder, Kind, Output
from palmette.encoder.options import check_truncate, chosen_prompts, fingerprint_with, truncated
from palmette.encoder.states import States
from palmette.errors import ConfigError, EncodingError, shown

PROBE = "palmette"
"""Text whose vector tells the width, and one model of a name from another."""
CLOSE = 0.98
"""Part of the largest number of a vector that may be the largest where the vector is computed again."""


class PooledEncoder(Encoder):
    """The base of encoders that return one vector a text: a subclass fills :meth:`embed`.

    Documents are ranked by their vector and by words, and each passage counts as one sentence.
    """

    def __init__(self, name: str, *, max_length: int, batch_size: int) -> None:
        super().__init__()
        self.name, self.max_length, self.batch_size = name, max_length, batch_size
        self.device, self.prompts, self.num_layers = "cpu", {}, 0
        self.dimension = self.hidden_size = self.width = 0
        self.truncate: int | None = None

    @abstractmethod
    def embed(self, texts: list[str], kind: Kind) -> Any:
        """Return a vector for each of some texts, none of them blank, with their prompt."""

    def settle(self, fingerprint: str, prompts: Mapping[str, str] | None, truncate: int | None) -> None:
        """Set prompts, width and fingerprint, once the model's own width is known."""
        self.prompts = {kind: prompt for kind, prompt in chosen_prompts(prompts, {}).items() if prompt}
        self.truncate = check_truncate(truncate, self.width, self.name)
        self.dimension = self.hidden_size = self.truncate or self.width
        self.fingerprint = fingerprint_with(fingerprint, {}, self.prompts, self.truncate)

    def forward(self, texts: Sequence[str], kind: Kind, outputs: frozenset[Output], depth: int | None = None) -> States:
        """Ask for the vectors of texts; there are no others."""
        if more := outputs - {"pooled"}:
            raise ConfigError(
                f"{self.name!r} gives one vector a text and no {' and '.join(sorted(more))}: this method needs an "
                "encoder whose states palmette can read, such as a sentence-transformers model"
            )
        prompt = self.prompts.get(kind, "")
        vectors = self.unit_vectors([prompt + text for text in texts], kind)
        return States(pooled=truncated(vectors, self.truncate))

    def unit_vectors(self, texts: list[str], kind: Kind) -> Floats:
        """Return unit vectors [N, d]; raise where :meth:`embed` returns anything else."""
        returned = self.embed([text if text.strip() else " " for text in texts], kind)
        try:
            vectors = np.asarray(returned, np.float32)
        except (TypeError, ValueError, OverflowError) as error:
            raise EncodingError(f"{self.name!r} returned no vectors but {shown(returned)} ({error})") from error
        if vectors.ndim != 2 or len(vectors) != len(texts) or not vectors.shape[1]:
            raise EncodingError(
                f"{self.name!r} returned an array {np.shape(vectors)} for {len(texts)} texts: a vector for each is "
                "needed"
            )
        if self.width and vectors.shape[1] != self.width:
            raise EncodingError(
                f"{self.name!r} returned vectors of {vectors.shape[1]} numbers, and {self.width} before: is it "
                "still the same model?"
            )
        if not np.isfinite(vectors).all():
            row = int((~np.isfinite(vectors)).any(axis=1).argmax())
            raise EncodingError(f"{self.name!r} returned NaN or infinity for text {row}: {shown(texts[row])}")
        return unit_rows(vectors)


def fingerprints(facts: str, probe: Floats) -> list[str]:
    """Return the fingerprint of a model by the vector of PROBE [d], and those that noise could make of it.

    Another model has its largest number elsewhere. Noise in the last digits moves it among the largest ones only.
    """
    sizes = np.abs(probe)
    order = np.argsort(-sizes, kind="stable")
    near = order[sizes[order] >= CLOSE * sizes[order[0]]]
    rows = [f"{facts}\0{len(probe)}\0{largest}\0{probe[largest] > 0}" for largest in near.tolist()]
    return [hashlib.sha256(row.encode("utf-8", "surrogatepass")).hexdigest() for row in rows]
