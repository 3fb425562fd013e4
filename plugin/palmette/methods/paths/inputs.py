"""What the module reads of a text: an embedding made once, or its tokens, where the encoder itself learns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm.auto import tqdm

if TYPE_CHECKING:
    from palmette.encoder import Backbone, Kind
    from palmette.methods.paths.module import Part
    from palmette.pairs import EncodedPairs

__all__ = ["Embedded", "Inputs", "Tokenised", "embedded", "tokens_of"]

PART = 32
"""Texts that the encoder reads at a time outside training."""
WORTH_A_BAR = 1000

Rows = NDArray[np.int64]


class Inputs(Protocol):
    """Queries and documents of a data set by their rows."""

    def queries(self, rows: Rows) -> Part:
        """A batch for the module."""
        ...

    def documents(self, rows: Rows) -> Part:
        """A batch for the module."""
        ...

    def query_embeddings(self, rows: Rows) -> Tensor:
        """[n, m] as they are now, without gradients."""
        ...

    def document_embeddings(self, rows: Rows) -> Tensor:
        """[n, m] as they are now, without gradients."""
        ...

    def to(self, device: torch.device) -> Self:
        """On another device."""
        ...


@dataclass(frozen=True)
class Embedded:
    """Those of a frozen encoder."""

    pairs: EncodedPairs

    def queries(self, rows: Rows) -> Tensor:
        """[n, m]."""
        return self.pairs.queries[torch.from_numpy(rows)]

    def documents(self, rows: Rows) -> Tensor:
        """[n, m]."""
        return self.pairs.documents[torch.from_numpy(rows)]

    query_embeddings, document_embeddings = queries, documents

    def to(self, device: torch.device) -> Self:
        """The embeddings."""
        return replace(self, pairs=self.pairs.to(device))


@dataclass(frozen=True)
class Tokenised:
    """Token ids, for a backbone that learns."""

    backbone: Backbone
    query_tokens: Sequence[Sequence[int]]
    document_tokens: Sequence[Sequence[int]]
    progress: bool | None = None

    @classmethod
    def of(cls, backbone: Backbone, pairs: EncodedPairs, progress: bool | None) -> Self:
        """Tokenise every text once."""
        queries = tokens_of(backbone, pairs.data.query_texts, "query")
        return cls(backbone, queries, tokens_of(backbone, pairs.data.texts, "document"), progress)

    def queries(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Padded ids [n, T], and where there is a token."""
        return self.backbone.padded([self.query_tokens[row] for row in rows.tolist()])

    def documents(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Padded ids [n, T], and where there is a token."""
        return self.backbone.padded([self.document_tokens[row] for row in rows.tolist()])

    def query_embeddings(self, rows: Rows) -> Tensor:
        """Read anew."""
        return embedded(self.backbone, [self.query_tokens[row] for row in rows.tolist()], self.progress)

    def document_embeddings(self, rows: Rows) -> Tensor:
        """Read anew."""
        return embedded(self.backbone, [self.document_tokens[row] for row in rows.tolist()], self.progress)

    def to(self, device: torch.device) -> Self:
        """Ids stay where they are."""
        return self


def tokens_of(backbone: Backbone, texts: Sequence[str], kind: Kind) -> list[list[int]]:
    """The ids of each text as the encoder reads it."""
    prompt = backbone.prompts.get(kind, "")
    rows = backbone.tokenise([prompt + text for text in texts])
    return [[backbone.cls, *ids, backbone.sep] for ids in rows]


@torch.no_grad()
def embedded(backbone: Backbone, tokens: Sequence[Sequence[int]], progress: bool | None = None) -> Tensor:
    """Embeddings [n, m] of tokenised texts, those of like lengths together."""
    order = sorted(range(len(tokens)), key=lambda row: len(tokens[row]))
    out = torch.zeros(len(tokens), backbone.dimension, device=backbone.device)
    learning = backbone.training
    backbone.eval()
    hidden = (None if progress is None else not progress) if len(tokens) > WORTH_A_BAR else True
    with tqdm(total=len(tokens), desc="Encoding", unit="text", disable=hidden, leave=False) as bar:
        for start in range(0, len(order), PART):
            rows = order[start : start + PART]
            ids, there = backbone.padded([tokens[row] for row in rows])
            out[torch.tensor(rows)] = backbone.pool(backbone(ids, there), there)
            bar.update(len(rows))
    backbone.train(learning)
    return out
