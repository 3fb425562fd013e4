"""The encoder of fields: one pass, a vector per field (equation 4) and their aggregate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from palmette.arrays import Floats, Rows
from palmette.encoder import Backbone
from palmette.encoder.local.backbone import set_dropout
from palmette.methods.fields.config import FieldsConfig

TextKind = Literal["document", "query", "pooled"]

WHOLE_FIRST = 3.0
"""Initial lead of the whole document's logit in the aggregate."""
WHOLE_ALONE = 200.0
"""The same lead without labelled pairs, under which the other weights vanish."""
TOKENS_PER_PASS = 2048
"""Tokens of one pass on a CPU, whose cache they fit."""
GPU_TOKENS = 16_384
"""Tokens of one pass on a GPU."""


class FieldLayout:
    """Positions of tokens and who attends to whom: block-triangular attention (equation 3).

    A document is the sequence ``CLS f₀ … f_{F−1}  text₀ SEP  text₁ SEP …``: one token per field right after CLS, so
    that it always has the same position. Every token has a code, and attention and pooling are tables over codes:

    * ``0 … F−1``    a word of that field
    * ``F … 2F−1``   the token of a field
    * ``2F … 3F−1``  the SEP after a field
    * ``3F``         CLS
    * ``3F + 1``     a word of a query (or the SEP after it)
    * ``3F + 2``     padding

    ``attended`` [F, F] says which fields (columns) a field (row) attends to, ``attention_table`` [C, C] the same of
    codes, ``pooling_table`` [F, C] which tokens are averaged into the vector of a field, ``before`` [F, F] the fields
    whose words are counted before those of a field, for its positions. ``printed``, as in equation 3, a field attends
    to the special tokens of these fields too, else to its own alone.
    """

    def __init__(self, attended: Tensor, *, printed: bool = False) -> None:
        self.attended, self.fields = attended, len(attended)
        count, own = self.fields, torch.eye(self.fields, dtype=torch.bool)
        full = bool(attended.all()) and count > 1
        words, tokens, ends = (slice(part * count, (part + 1) * count) for part in range(3))
        cls, query, padding = 3 * count, 3 * count + 1, 3 * count + 2
        self.attention_table = torch.zeros(padding + 1, padding + 1, dtype=torch.bool)
        for part in (words, tokens, ends):
            self.attention_table[part, words] = attended
            # Of tokens and SEPs only those of the own field: the encoder knows one CLS and one SEP.
            special = attended if printed else own
            self.attention_table[part, tokens] = self.attention_table[part, ends] = special
        # CLS attends to every word; no word of a document attends to CLS, or later fields would leak through it.
        self.attention_table[cls, words] = self.attention_table[cls, [cls, query]] = True
        self.attention_table[query, [cls, query]] = True
        self.attention_table[tokens, query] = True
        self.attention_table[padding, padding] = True
        # With full attention each field averages its own words, or all vectors would be alike.
        self.pooling_table = torch.zeros(count, padding + 1, dtype=torch.bool)
        self.pooling_table[:, words] = own if full else attended
        self.pooling_table[:, tokens] = self.pooling_table[:, ends] = own
        self.pooling_table[:, query] = True
        self.before = (attended.tril(-1) if full else attended & ~own).long()

    def mask(self, codes: Tensor) -> Tensor:
        """Attention mask [B, 1, T, T] of codes [B, T]."""
        return self.attention_table.to(codes.device)[codes[:, :, None], codes[:, None, :]][:, None]

    def members(self, codes: Tensor) -> Tensor:
        """Tokens averaged into the vector of each field [B, F, T], of codes [B, T]."""
        return self.pooling_table.to(codes.device)[:, codes].transpose(0, 1)

    def present_fields(self, codes: Tensor) -> Tensor:
        """Fields that have words of their own [B, F]; all of them in a query."""
        present = torch.stack([(codes == field).any(1) for field in range(self.fields)], dim=1)  # [B, F]
        return present | (codes == 3 * self.fields + 1).any(1)[:, None]

    def documents(self, documents: Sequence[Sequence[Sequence[int]]], backbone: Backbone) -> list[Tensor]:
        """Token ids, codes and positions [B, T] of documents, given as token ids by field."""
        rows = []
        for fields in documents:
            ids, codes, positions = self._head(backbone)
            sizes = torch.tensor([len(words) for words in fields])
            starts = (1 + self.before @ sizes).tolist()  # positions count only words that are attended to
            for field, (words, start) in enumerate(zip(fields, starts, strict=True)):
                if len(words):
                    ids += [*words, backbone.sep]
                    codes += [*[field] * len(words), 2 * self.fields + field]
                    positions += range(start, start + len(words) + 1)
            rows.append((ids, codes, positions))
        return self._batch(rows, backbone.pad)

    def queries(self, queries: Sequence[Sequence[int]], backbone: Backbone) -> list[Tensor]:
        """Token ids, codes and positions [B, T] of queries: the tokens of all fields, then words that all attend to."""
        rows = []
        for words in queries:
            ids, codes, positions = self._head(backbone)
            count = len(words) + 1
            ids, codes = [*ids, *words, backbone.sep], [*codes, *[3 * self.fields + 1] * count]
            rows.append((ids, codes, [*positions, *range(1, count + 1)]))
        return self._batch(rows, backbone.pad)

    def _head(self, backbone: Backbone) -> tuple[list[int], list[int], list[int]]:
        """CLS and the fields' tokens, all at position 0, so that words keep the positions the encoder expects."""
        ids = [backbone.cls, *range(backbone.vocabulary, backbone.vocabulary + self.fields)]
        return ids, [3 * self.fields, *range(self.fields, 2 * self.fields)], [0] * len(ids)

    def _batch(self, rows: Sequence[tuple[list[int], ...]], pad: int) -> list[Tensor]:
        columns = zip(*([torch.tensor(part) for part in row] for row in rows), strict=True)
        filled = zip(columns, (pad, 3 * self.fields + 2, 0), strict=True)
        return [nn.utils.rnn.pad_sequence(list(column), True, filler) for column, filler in filled]


class Pooled(NamedTuple):
    """States of texts: one per field [B, F, w], that of CLS [B, w]; which fields are filled, and weighed [B, F]."""

    fields: Tensor
    first: Tensor
    filled: Tensor
    weighed: Tensor


class Encoded(NamedTuple):
    """Vectors of texts: h_f [B, F, d], weights w_f [B, F] and the aggregate h [B, d]."""

    fields: Tensor
    weights: Tensor
    aggregate: Tensor


class FieldEncoder(nn.Module):
    """A BERT with one token per field and block-triangular attention; with one field it is the encoder it copies."""

    def __init__(self, config: FieldsConfig, backbone: Backbone, precision: str = "float32") -> None:
        super().__init__()
        self.config, self.backbone, self.precision = config, backbone, precision
        set_dropout(backbone.network, config.dropout)
        self.layout = FieldLayout(torch.from_numpy(config.attended), printed=config.attention == "printed")
        count, width = self.layout.fields, backbone.width
        self.frozen = config.trained_layers == 0
        self.transformer_learns = not self.frozen
        # Multiples of the learning rate: parts that start at zero may learn faster than pretrained ones.
        self.lr_scale = {"field_maps": 6.0, "field_weights": 20.0} if self.frozen else {}
        # A linear map per field is what learns where the encoder is frozen.
        self.field_maps = nn.Parameter(torch.zeros(count, width, width)) if self.frozen else None
        # K starts at zero and its bias where the untrained fields rank best: see ``training.py``.
        self.field_weights = nn.Linear(width, count)
        nn.init.zeros_(self.field_weights.weight)
        nn.init.zeros_(self.field_weights.bias)
        if config.reads_whole:
            nn.init.constant_(self.field_weights.bias[-1:], WHOLE_FIRST if config.labelled else WHOLE_ALONE)

    def train(self, mode: bool = True) -> Self:
        """Set the training mode; a frozen encoder stays without dropout."""
        super().train(mode)
        if self.frozen:
            self.backbone.eval()
        return self

    def forward(self, kind: TextKind, texts: Any) -> Encoded:
        """Vectors of documents (token ids by field), queries (token ids) or :class:`Pooled` states.

        Each state is mapped by its field's map; the aggregate is their weighted sum.
        """
        pooled: Pooled = texts if kind == "pooled" else self.pool(kind, texts)
        states, first, filled = pooled.fields.float(), pooled.first.float(), pooled.filled
        with torch.autocast(states.device.type, enabled=False):  # half precision is for the transformer alone
            if self.field_maps is not None:
                states = states + torch.einsum("bfw,fwv->bfv", states, self.field_maps)  # [B, F, w]
            flat = self._scale(self.backbone.finish(states.flatten(0, 1)))  # [B·F, d]
            fields = flat.view(*filled.shape, flat.shape[-1]) * filled[..., None]
            lowest = torch.finfo(torch.float32).min
            weights = self.field_weights(first).masked_fill(~pooled.weighed, lowest).softmax(-1)  # K h_CLS
            return Encoded(fields, weights, self.aggregate(fields, weights))

    def pool(self, kind: TextKind, texts: Sequence[Any]) -> Pooled:
        """States of documents or queries, from one pass of the encoder."""
        sequences = self.layout.documents if kind == "document" else self.layout.queries
        ids, codes, positions = (part.to(self.backbone.device) for part in sequences(texts, self.backbone))
        states = torch.as_tensor(self.backbone(ids, self.layout.mask(codes), positions))  # [B, T, w]
        pooling = self.config.pooling
        if pooling == "token" or (pooling == "auto" and self.backbone.pooling == "cls"):
            fields = states[:, 1 : self.layout.fields + 1]  # [B, F, w]
        else:
            members = self.layout.members(codes).to(states.dtype)  # [B, F, T]
            fields = members @ states / members.sum(-1, keepdim=True)
        present = self.layout.present_fields(codes)
        # Fields that attend to at least one word; others, before the first present one, get no vector.
        filled = present.float() @ self.layout.attended.T.to(present.device).float() > 0  # [B, F]
        # Untrained weights do not know that a field without words repeats those before it.
        return Pooled(fields, states[:, 0], filled, filled if self.config.labelled else present)

    def aggregate(self, fields: Tensor, weights: Tensor) -> Tensor:
        """Weighted sum h = Σ_f w_f h_f: [B, F, d], [B, F] → [B, d]."""
        return self._scale(torch.einsum("bfd,bf->bd", fields, weights))

    def _scale(self, vectors: Tensor) -> Tensor:
        return F.normalize(vectors, dim=-1) if self.config.similarity == "cosine" else vectors

    def autocast(self) -> Any:
        """Precision of encoding where nothing is trained."""
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(self.backbone.device.type, dtype=getattr(torch, self.precision))

    def batches(self, texts: Sequence[Any]) -> Iterator[Rows]:
        """Rows of texts of similar length, the longest first."""
        lengths = np.array([_length(text) + 2 * self.layout.fields + 1 for text in texts])
        order, start = np.argsort(-lengths, kind="stable"), 0
        room = TOKENS_PER_PASS if self.backbone.device.type == "cpu" else GPU_TOKENS
        while start < len(order):
            stop = start + max(1, room // int(lengths[order[start]]))
            yield order[start:stop]
            start = stop

    def encode(self, kind: TextKind, texts: Sequence[Any]) -> tuple[Floats, Floats, Floats]:
        """Fields' vectors [N, F, d], weights [N, F] and aggregates [N, d], without gradients, in the order given."""
        count = self.layout.fields
        shapes = ((count, self.backbone.dimension), (count,), (self.backbone.dimension,))
        fields, weights, aggregate = (np.empty((len(texts), *shape), np.float32) for shape in shapes)
        with torch.inference_mode(), self.autocast():
            for rows in self.batches(texts):
                encoded = self(kind, [texts[row] for row in rows])
                for array, tensor in zip((fields, weights, aggregate), encoded, strict=True):
                    array[rows] = tensor.float().cpu().numpy()
        return fields, weights, aggregate


def _length(text: Any) -> int:
    return sum(map(len, text)) if text and not isinstance(text[0], int) else len(text)


def gradient_cached(module: nn.Module, kind: TextKind, texts: Sequence[Any], chunk: int) -> Encoded:
    """Vectors of a batch, with gradients, at the memory of one chunk (gradient caching).

    A chunk's activations are dropped and computed again, with the same dropout, when its gradient is due: the loss
    sees the whole batch, and the gradients are those of the whole batch.
    """
    if not chunk or len(texts) <= chunk:
        return Encoded(*module(kind, texts))
    order = np.argsort([-_length(text) for text in texts], kind="stable")
    parts = [
        checkpoint(module, kind, [texts[row] for row in order[start : start + chunk]], use_reentrant=False)
        for start in range(0, len(texts), chunk)
    ]
    back = torch.from_numpy(np.argsort(order))
    return Encoded(*(torch.cat(column)[back.to(column[0].device)] for column in zip(*parts, strict=True)))


class FrozenStates:
    """Pooled states of texts under a frozen encoder, in half precision: each row is encoded once, on first use."""

    def __init__(self, module: FieldEncoder, kind: TextKind, count: int, read: Callable[[Rows], Any]) -> None:
        self.module, self.kind, self.read = module, kind, read
        fields = module.layout.fields
        self.states = np.empty((count, fields + 1, module.backbone.width), np.float16)
        self.filled = np.empty((count, fields), bool)
        self.known = np.zeros(count, bool)

    def __getitem__(self, rows: Rows) -> Pooled:
        missing = np.unique(rows[~self.known[rows]])
        texts = self.read(missing)
        with torch.no_grad(), self.module.autocast():
            for part in self.module.batches(texts):
                fields, first, filled, _ = self.module.pool(self.kind, [texts[at] for at in part])
                chosen = missing[part]
                pooled = torch.cat([fields, first[:, None]], 1)  # [b, F + 1, w]
                self.states[chosen] = pooled.half().cpu().numpy()
                self.filled[chosen] = filled.cpu().numpy()
                self.known[chosen] = True
        device = self.module.backbone.device
        states = torch.from_numpy(self.states[rows]).to(device).float()
        filled = torch.from_numpy(self.filled[rows]).to(device)
        return Pooled(states[:, :-1], states[:, -1], filled, filled)
