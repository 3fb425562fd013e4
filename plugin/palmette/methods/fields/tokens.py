"""Documents and queries as token ids, made once for a training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from tqdm.auto import tqdm

from palmette.encoder import Backbone
from palmette.errors import ConfigError
from palmette.methods.fields.config import FieldsConfig
from palmette.methods.fields.reading import Reader
from palmette.types import Document

__all__ = ["Tokens", "field_tokens", "limits_of", "query_limit"]

_PART = 512  # texts tokenised between two looks at the progress bar
_SAMPLE = 1000
"""Documents by which the room of each field is chosen."""
_MOST = 0.95
"""Share of the documents whose field is to fit whole, where there is room."""
_LEAST = 4
"""Tokens that every field gets."""


@dataclass(frozen=True)
class Tokens:
    """Token ids of many texts on end, in half the memory of lists."""

    flat: NDArray[np.int32]
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Self:
        """Gather rows."""
        sizes = np.fromiter(map(len, rows), np.int64, len(rows))
        flat = np.fromiter((id for row in rows for id in row), np.int32, int(sizes.sum()))
        return cls(flat, np.concatenate([[0], np.cumsum(sizes)]))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, row: int) -> list[int]:
        ids: list[int] = self.flat[self.starts[row] : self.starts[row + 1]].tolist()
        return ids

    @classmethod
    def read(
        cls, backbone: Backbone, texts: Sequence[str], limit: int, *, progress: bool | None, label: str
    ) -> Self:
        """Tokenise texts, ``limit`` tokens of each at most."""
        rows: list[list[int]] = []
        hidden = None if progress is None else not progress
        with tqdm(total=len(texts), desc=label, unit="text", delay=2, disable=hidden, leave=False) as bar:
            for start in range(0, len(texts), _PART):
                part = [text[: 40 * limit] for text in texts[start : start + _PART]]  # nobody reads on
                rows += backbone.tokenise(part, limit)
                bar.update(len(part))
        return cls.of(rows)


def field_tokens(
    backbone: Backbone,
    reader: Reader,
    documents: Sequence[Document],
    limits: Sequence[int],
    ancestors: Tensor,
    *,
    progress: bool | None = False,
) -> list[Tokens]:
    """The tokens of each field of all documents.

    The encoder's prompt stands before a field that sees no other which is there, by ``ancestors`` [F, F].
    """
    texts = [reader.read(document) for document in documents]
    if prompt := backbone.prompts.get("document", ""):
        mutual = ancestors & ancestors.T  # with full attention the first field counts as seen by the others
        earlier = ((ancestors & ~mutual) | mutual.tril(-1)).numpy()
        for row in texts:
            there = np.array([bool(text) for text in row])
            for field in np.flatnonzero(there & ~(earlier & there).any(1)).tolist():
                row[field] = prompt + row[field]
    return [
        Tokens.read(backbone, [row[at] for row in texts], limit, progress=progress, label=f"Reading {name}")
        for at, (name, limit) in enumerate(zip(reader.names, limits, strict=True))
    ]


def limits_of(
    backbone: Backbone,
    reader: Reader,
    documents: Sequence[Document],
    given: dict[str, int],
    room: int,
    ancestors: Tensor,
    *,
    whole: bool = False,
) -> tuple[int, ...]:
    """How many tokens each field gets: what it needs in nearly all documents, if the room suffices.

    Where it does not, the longest fields are cut alike. A last field that is the ``whole`` document has a room of its
    own, that of a text.
    """
    if whole:
        *others, last = reader.names
        parts = Reader({name: reader.sources[name] for name in others})
        own = {name: tokens for name, tokens in given.items() if name != last}
        if given.get(last, 0) > room - 2:
            raise ConfigError(
                f"fields: a budget of {given[last]} tokens for {last!r}, but a document has {room - 2} at most "
                "(document_tokens, or what the encoder takes): give a smaller one"
            )
        return (
            *limits_of(backbone, parts, documents, own, room, ancestors[:-1, :-1]),
            given.get(last, room - 2),
        )
    step = max(1, len(documents) // _SAMPLE)
    sample = documents[::step][:_SAMPLE]
    lengths = [
        np.diff(tokens.starts)
        for tokens in field_tokens(backbone, reader, sample, [room] * len(reader.names), ancestors)
    ]
    wanted = np.array([max(_LEAST, int(np.quantile(length, _MOST))) for length in lengths])
    fixed = np.array([name in given for name in reader.names])
    left = room - 1 - 2 * len(wanted) - sum(given.values())  # CLS, and a token and a SEP for each field
    for cut in range(room, _LEAST - 1, -1):
        chosen = np.minimum(wanted, cut)
        if chosen[~fixed].sum() <= left:
            break
    limits = tuple(given.get(name, int(size)) for name, size in zip(reader.names, chosen, strict=True))
    most = backbone.positions - 2  # CLS stands before all fields, a SEP after the last
    if sum(limits) > most:
        raise ConfigError(
            f"fields: {len(limits)} fields of {sum(limits)} tokens together, but the encoder has room for {most}: "
            "give smaller budgets or fewer fields, or join some ('names=brand+title')"
        )
    return limits


def query_limit(backbone: Backbone, config: FieldsConfig) -> int:
    """Tokens of a query that are read: no more than the encoder takes."""
    return min(config.query_tokens, backbone.max_length - 2)
