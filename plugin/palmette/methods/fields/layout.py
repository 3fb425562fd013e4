"""Which token stands where, and which may look at which: block-triangular attention, and a pooling per field.

A document of F fields is the sequence ``CLS f₀ … f_{F−1}  text₀ SEP  text₁ SEP …``: one token per field right after
CLS, so that it always stands in the same place. Every token has a code that says what it is:

* ``0 … F−1``    a word of that field
* ``F … 2F−1``   the token of a field
* ``2F … 3F−1``  the SEP after a field
* ``3F``         CLS
* ``3F + 1``     a word of a query (or the SEP after it)
* ``3F + 2``     nothing, where a shorter sequence is filled up

What may look at what, and what is averaged into a field's vector, are small tables over these codes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from palmette.errors import ConfigError

__all__ = ["Attention", "Batch", "Layout", "ancestors_of"]

Attention = Literal["triangular", "diagonal", "full"]

Fields = Sequence[Sequence[int]]
"""Token ids of each field of a document."""


def ancestors_of(
    names: Sequence[str],
    attention: Attention,
    sees: Mapping[str, Sequence[str]] | None,
    *,
    alone: bool = False,
) -> Tensor:
    """Which field sees which, itself included: [F, F] bool, row f sees column g.

    Args:
        names: The fields in their order.
        attention: ``triangular`` sees all earlier ones, ``diagonal`` none, ``full`` all.
        sees: Field → fields that it sees, instead, as any graph without cycles; what those see comes with them,
            since it flows through the layers anyway.
        alone: Whether the last field sees itself only, and is seen by nobody: it holds the whole document.
    """
    count = len(names)
    if alone:
        whole = torch.eye(count, dtype=torch.bool)
        whole[:-1, :-1] = ancestors_of(names[:-1], attention, sees)
        return whole
    if not sees:
        every = torch.ones(count, count, dtype=torch.bool)
        return {"triangular": every.tril(), "diagonal": every.tril().triu(), "full": every}[attention]
    table = torch.eye(count, dtype=torch.bool)
    for name, seen in sees.items():
        for other in (name, *seen):
            if other not in names:
                raise ConfigError(
                    f"sees names the field {other!r}, which is not there; fields: {', '.join(names)}"
                )
        table[names.index(name), [names.index(other) for other in seen]] = True
    for _ in names:
        table = (table.float() @ table.float()) > 0
    circular = table & table.T & ~torch.eye(count, dtype=torch.bool)
    if circular.any():
        first, second = (names[at] for at in circular.nonzero()[0].tolist())
        raise ConfigError(f"sees goes round in a circle: {first!r} and {second!r} would see each other")
    return table


class Batch(NamedTuple):
    """Sequences of one forward pass: [B, T] each."""

    ids: Tensor
    codes: Tensor
    positions: Tensor


@dataclass(frozen=True)
class Layout:
    """The tables of one arrangement of fields.

    Attributes:
        fields: How many, F.
        looks: [C, C] whether a token of one code may look at one of another, C = 3F + 3.
        averaged: [F, C] whether tokens of a code count in the vector of a field.
        before: [F, F] which fields' words are counted before those of a field, to say where these stand.
    """

    fields: int
    looks: Tensor
    averaged: Tensor
    before: Tensor

    @classmethod
    def of(cls, ancestors: Tensor) -> Self:
        """From which field sees which [F, F]."""
        count = len(ancestors)
        own = torch.eye(count, dtype=torch.bool)
        words, tokens, ends = (slice(part * count, (part + 1) * count) for part in range(3))
        first, asked, nothing = 3 * count, 3 * count + 1, 3 * count + 2
        looks = torch.zeros(nothing + 1, nothing + 1, dtype=torch.bool)
        for part in (words, tokens, ends):
            looks[part, words] = ancestors
            # Of tokens and SEPs all look at their own field's alone: one CLS and one SEP is what the encoder knows.
            looks[part, tokens] = looks[part, ends] = own
        looks[first, words] = looks[first, [first, asked]] = (
            True  # CLS sees every word; no word of a document sees it
        )
        looks[asked, [first, asked]] = True  # a query has nothing to hide
        looks[tokens, asked] = True
        looks[nothing, nothing] = True
        # What all fields see alike would make all vectors alike: with full attention each averages its own words.
        averaged = torch.zeros(count, nothing + 1, dtype=torch.bool)
        averaged[:, words] = own if bool(ancestors.all()) and count > 1 else ancestors
        averaged[:, tokens] = averaged[:, ends] = own
        averaged[:, asked] = True
        before = ancestors.tril(-1) if bool(ancestors.all()) else ancestors & ~own
        return cls(count, looks, averaged, before)

    def mask(self, codes: Tensor) -> Tensor:
        """[B, T] codes → which token looks at which [B, 1, T, T]."""
        return self.looks.to(codes.device)[codes[:, :, None], codes[:, None, :]][:, None]

    def members(self, codes: Tensor) -> Tensor:
        """[B, T] codes → which tokens make the vector of each field [B, F, T]."""
        return self.averaged.to(codes.device)[:, codes].transpose(0, 1)

    def documents(self, documents: Sequence[Fields], ends: tuple[int, int, int], new: int) -> Batch:
        """Token ids by field → sequences; ``ends`` are CLS, SEP and padding, ``new`` the first field's token."""
        cls, sep, pad = ends
        rows = []
        for fields in documents:
            ids, codes, positions = self._head(cls, new)
            sizes = torch.tensor([len(words) for words in fields])
            starts = (
                1 + self.before.long() @ sizes
            ).tolist()  # where a field stands tells of what it sees alone
            for field, (words, start) in enumerate(zip(fields, starts, strict=True)):
                if len(words):
                    ids += [*words, sep]
                    codes += [*[field] * len(words), 2 * self.fields + field]
                    positions += range(start, start + len(words) + 1)
            rows.append((ids, codes, positions))
        return self._batch(rows, pad)

    def queries(self, queries: Sequence[Sequence[int]], ends: tuple[int, int, int], new: int) -> Batch:
        """Token ids of queries → sequences with the same tokens before them."""
        cls, sep, pad = ends
        rows = []
        for words in queries:
            ids, codes, positions = self._head(cls, new)
            count = len(words) + 1
            rows.append(
                (
                    [*ids, *words, sep],
                    [*codes, *[3 * self.fields + 1] * count],
                    [*positions, *range(1, count + 1)],
                )
            )
        return self._batch(rows, pad)

    def _head(self, cls: int, new: int) -> tuple[list[int], list[int], list[int]]:
        """CLS and the tokens of fields, which share its place: words stand where the encoder is used to find them."""
        ids = [cls, *range(new, new + self.fields)]
        return ids, [3 * self.fields, *range(self.fields, 2 * self.fields)], [0] * len(ids)

    def _batch(self, rows: Sequence[tuple[list[int], list[int], list[int]]], pad: int) -> Batch:
        def column(part: int, filler: int) -> Tensor:
            parts = [torch.tensor(row[part]) for row in rows]
            return nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=filler)

        return Batch(column(0, pad), column(1, 3 * self.fields + 2), column(2, 0))
