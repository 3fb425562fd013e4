"""The encoder of fields: one pass, a vector per field and one of them all."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from palmette.encoder import Backbone
from palmette.encoder.attention import set_dropout
from palmette.methods.fields.config import FieldsConfig
from palmette.methods.fields.layout import Batch, Fields, Layout
from palmette.methods.fields.memory import Memory, Read
from palmette.methods.fields.words import QueryWords

__all__ = ["Encoded", "FieldEncoder", "aggregated"]

FIRST = 3.0
"""With a field that holds the whole document, how much more than others it counts before anything is learned."""


class Encoded(NamedTuple):
    """What a pass gives for B documents or queries.

    Attributes:
        fields: [B, F, d] h_f, one vector per field.
        weights: [B, F] w, how much each counts in the aggregate.
        aggregate: [B, d] h = Σ_f w_f h_f.
    """

    fields: Tensor
    weights: Tensor
    aggregate: Tensor


def aggregated(fields: Tensor, weights: Tensor, *, unit: bool) -> Tensor:
    """The sum h = Σ_f w_f h_f: [B, F, d], [B, F] → [B, d], of unit length where similarities are cosines."""
    sums = torch.einsum("bfd,bf->bd", fields, weights)
    return F.normalize(sums, dim=-1) if unit else sums


class FieldEncoder(nn.Module):
    """CHARM: a BERT with a token per field and an attention that lets no field see a later one.

    It starts as the encoder it is made from: with one field, its vectors are the encoder's own.
    """

    def __init__(self, config: FieldsConfig, backbone: Backbone, precision: str = "float32") -> None:
        super().__init__()
        self.config, self.backbone = config, backbone
        self.precision = precision
        set_dropout(backbone.network, config.dropout)
        self.ancestors = config.ancestors
        self.layout = Layout.of(self.ancestors)
        count, width = len(config.order), backbone.width
        self.turns = nn.Parameter(torch.zeros(count, width, width)) if self.frozen else None
        """A map for each field, which is what there is to learn where the encoder stays as it is."""
        self.words = (
            QueryWords(backbone.vocabulary, config.words, backbone.dimension) if config.words else None
        )
        # K begins at zero and its bias where the fields as they are rank best: see ``start.py``.
        self.weigh = nn.Linear(width, count)
        nn.init.zeros_(self.weigh.weight)
        nn.init.zeros_(self.weigh.bias)
        if config.reads_whole:
            nn.init.constant_(self.weigh.bias[-1:], FIRST)
        self.memory: Memory | None = None
        """What a frozen encoder has read, while it trains."""

    @property
    def paces(self) -> dict[str, float]:
        """What begins at zero may go faster than what was pretrained would."""
        return {"turns": 6.0, "weigh": 20.0, "words": QueryWords.paces["table"]} if self.frozen else {}

    @property
    def frozen(self) -> bool:
        """Whether the encoder itself stays as it is."""
        return self.config.trained_layers == 0

    @property
    def transformer_learns(self) -> bool:
        """Whether training gains from bfloat16 on CPUs that have it."""
        return not self.frozen

    def train(self, mode: bool = True) -> Self:
        """As everywhere, but nothing is dropped of what does not learn."""
        super().train(mode)
        if self.frozen:
            self.backbone.eval()
        return self

    def learn_words(self, tokens: NDArray[np.integer[Any]]) -> None:
        """Give tokens of queries, distinct ids, vectors of their own."""
        self.config = self.config.replace(words=len(tokens))
        self.words = QueryWords(self.backbone.vocabulary, len(tokens), self.backbone.dimension)
        self.words.to(self.backbone.device).hold(tokens)

    @property
    def ends(self) -> tuple[int, int, int]:
        """The ids of CLS, SEP and padding."""
        return self.backbone.cls, self.backbone.sep, self.backbone.pad

    def documents(self, documents: Sequence[Fields]) -> Encoded:
        """Token ids by field → vectors."""
        return self._finished(self._read("document", documents))

    def queries(self, queries: Sequence[Sequence[int]]) -> Encoded:
        """Token ids of queries → vectors, made with the same tokens and weights as those of documents."""
        made = self.plain_queries(queries)
        if self.words is None:
            return made
        return made._replace(aggregate=self.scaled(made.aggregate + self.words(queries)))

    def plain_queries(self, queries: Sequence[Sequence[int]]) -> Encoded:
        """The same before anything is added for their words."""
        plain = self.config.queries == "plain"
        return self._plain(queries) if plain else self._finished(self._read("query", queries))

    def forward(self, kind: Literal["document", "query"], texts: Sequence[Any]) -> Encoded:
        """Either, as a training across processes needs it."""
        return self.documents(texts) if kind == "document" else self.queries(texts)

    def states(self, batch: Batch) -> Tensor:
        """Hidden states of sequences [B, T, w]."""
        ids, codes, positions = (part.to(self.backbone.device) for part in batch)
        return torch.as_tensor(self.backbone(ids, self.layout.mask(codes), positions))

    def _read(self, kind: Literal["document", "query"], texts: Sequence[Any]) -> Read:
        """What the encoder makes of texts, if it has not read them before."""
        made = self.layout.documents if kind == "document" else self.layout.queries

        def read(some: Sequence[Any]) -> Read:
            return self._pooled(made(some, self.ends, self.backbone.vocabulary))

        if self.memory is None:
            return read(texts)
        with torch.no_grad(), self.computing():
            return self.memory.recall(kind, texts, read, self.backbone.device)

    def _pooled(self, batch: Batch) -> Read:
        """One pass: a state per field, and CLS."""
        count, states = self.layout.fields, self.states(batch)  # [B, T, w]
        if self.config.token_pooling(self.backbone.pooling):
            pooled = states[:, 1 : count + 1]  # [B, F, w]
        else:
            members = self.layout.members(batch.codes.to(states.device)).to(states.dtype)  # [B, F, T]
            pooled = members @ states / members.sum(-1, keepdim=True)
        return Read(pooled, states[:, 0], self._told(batch.codes.to(states.device)))

    def _finished(self, read: Read) -> Encoded:
        """States → vectors, each turned by its field's map, and their sum."""
        pooled, first, there = read[0].float(), read[1].float(), read[2]
        with torch.autocast(pooled.device.type, enabled=False):  # half precision is for the transformer alone
            if self.turns is not None:
                pooled = pooled + torch.einsum("bfw,fwv->bfv", pooled, self.turns)  # [B, F, w]
            flat = self.scaled(self.backbone.finish(pooled.flatten(0, 1)))  # [B·F, d]
            fields = flat.view(*there.shape, flat.shape[-1]) * there[..., None]
            lowest = torch.finfo(torch.float32).min
            weights = self.weigh(first).masked_fill(~there, lowest).softmax(-1)  # [B, F] softmax(K h_CLS)
            return Encoded(fields, weights, aggregated(fields, weights, unit=self.unit))

    def _told(self, codes: Tensor) -> Tensor:
        """Which fields have a word to see [B, F]; the vectors of others, before the first that is filled, are zero."""
        count = self.layout.fields
        asked = (codes == 3 * count + 1).any(1)  # [B]
        filled = torch.stack([(codes == field).any(1) for field in range(count)], dim=1)  # [B, F]
        seen = filled.float() @ self.ancestors.T.to(codes.device).float() > 0
        return seen | asked[:, None]

    def _plain(self, queries: Sequence[Sequence[int]]) -> Encoded:
        """As the encoder reads texts: asymmetric, one vector, no tokens of fields."""
        ids, there = self.backbone.padded(
            [[self.backbone.cls, *words, self.backbone.sep] for words in queries]
        )
        vectors = self.scaled(self.backbone.pool(self.backbone(ids, there), there).float())  # [B, d]
        return Encoded(vectors[:, None], vectors.new_ones(len(vectors), 1), vectors)

    def computing(self) -> AbstractContextManager[Any]:
        """The precision that the encoder computes in, where nothing is trained."""
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(self.backbone.device.type, dtype=getattr(torch, self.precision))

    @property
    def unit(self) -> bool:
        """Whether vectors have unit length."""
        return self.config.similarity == "cosine"

    def scaled(self, vectors: Tensor) -> Tensor:
        """Of unit length where similarities are cosines."""
        return F.normalize(vectors, dim=-1) if self.unit else vectors
