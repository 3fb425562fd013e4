"""An encoder that looks into the cache first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from palmette.arrays import Floats, Rows
from palmette.encoder.base import Encoder, Kind, Output, WrappedEncoder, inner
from palmette.encoder.cache.encodings import EncodingCache
from palmette.encoder.sentences import Sentences
from palmette.encoder.states import States


class CachedEncoder(WrappedEncoder):
    """An encoder whose vectors of texts and sentences are kept: what training has encoded, indexing need not again.

    Queries, which are rarely repeated, tokens and layers go straight to the encoder. It takes an encoder's place
    anywhere.
    """

    forward, encode_queries = inner("forward"), inner("encode_queries")
    map, map_sentences, space_weights = inner("map"), inner("map_sentences"), inner("space_weights")

    def __init__(self, encoder: Encoder, cache: EncodingCache | str | Path | None = None) -> None:
        super().__init__(encoder)
        self.cache = cache if isinstance(cache, EncodingCache) else EncodingCache(cache)

    @property
    def plain(self) -> Encoder:  # noqa: D102
        return self if self.encoder.plain is self.encoder else self.encoder.plain

    def encode(self, texts: Sequence[str], **options: Any) -> Floats:
        """Return pooled vectors [N, d], from the cache where they are known."""
        return self.cache.encode(self.encoder, texts, **{"progress": False, **options})

    def iter_states(
        self, texts: Sequence[str], *, kind: Kind = "document", outputs: Sequence[Output] = ("pooled",), **options: Any
    ) -> Iterator[tuple[Rows, States]]:
        """Yield pooled vectors of documents from the cache; all else from the encoder."""
        if tuple(outputs) != ("pooled",) or kind == "query":
            yield from self.encoder.iter_states(texts, kind=kind, outputs=outputs, **options)
            return
        known = {name: options[name] for name in ("batch_size", "progress") if name in options}
        vectors = self.encode(texts, **known)
        for start in range(0, len(texts), 1024):
            rows = np.arange(start, min(start + 1024, len(texts)))
            yield rows, States(vectors[rows])

    def encode_sentences(  # noqa: D102
        self, texts: Sequence[str], *, positions: Sequence[int] | None = None, **options: Any
    ) -> tuple[Floats, Sentences]:
        return self.cache.encode_sentences(self.encoder, texts, **{"progress": False, **options})
