"""An encoder that takes the place of the one that a model or an index was made with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from palmette.encoder.base import Encoder, WrappedEncoder, inner


class StandInEncoder(WrappedEncoder):
    """An export of the encoder that a checkpoint names, such as an ONNX one: what is saved names the original.

    Its fingerprint stays the export's own, so that a cache keeps the encodings of both apart.
    """

    forward = inner("forward")

    def __init__(self, encoder: Encoder, original: Mapping[str, Any]) -> None:
        super().__init__(encoder)
        self.name, self._original = str(original["name"]), dict(original)
        self.reads_questions_only = encoder.precision == "int8"  # documents in it would lie a little beside the others

    def to_config(self) -> dict[str, Any]:
        """Return the config of the original."""
        return dict(self._original)
