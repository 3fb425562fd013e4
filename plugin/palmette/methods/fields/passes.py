"""Many texts through the encoder of fields: for training in chunks, for an index in batches of like length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.checkpoint import checkpoint
from tqdm.auto import tqdm

from palmette.methods.fields.layout import Fields
from palmette.methods.fields.module import Encoded, FieldEncoder

__all__ = ["Arrays", "encoded_documents", "encoded_queries", "in_chunks"]

Floats = NDArray[np.float32]

_TOKENS = {"cpu": 2048}
"""About how many tokens one pass takes: what stays in a CPU's cache."""
_MANY = 16_384


class Arrays(NamedTuple):
    """What is known of N documents: vectors [N, F, d], weights [N, F], aggregate [N, d]."""

    fields: Floats
    weights: Floats
    aggregate: Floats


def in_chunks(
    module: nn.Module, kind: Literal["document", "query"], texts: Sequence[Any], chunk: int
) -> Encoded:
    """Vectors of a batch, with gradients, at the memory of one chunk (gradient caching).

    What a chunk computes on the way is forgotten, and computed again, with the same dropout, when its gradient is
    due: the loss sees the whole batch, and the gradients are those of the whole batch.
    """
    if not chunk or len(texts) <= chunk:
        return Encoded(*module(kind, texts))
    order = np.argsort([-_length(text) for text in texts], kind="stable")
    parts = []
    for start in range(0, len(texts), chunk):
        some = [texts[row] for row in order[start : start + chunk]]
        parts.append(checkpoint(module, kind, some, use_reentrant=False))
    back = torch.from_numpy(np.argsort(order))
    return Encoded(*(torch.cat(column)[back.to(column[0].device)] for column in zip(*parts, strict=True)))


def _length(text: Any) -> int:
    return sum(map(len, text)) if text and not isinstance(text[0], int) else len(text)


def _batches(module: FieldEncoder, texts: Sequence[Any]) -> list[NDArray[np.int64]]:
    """Rows of texts of like length, the longest first."""
    lengths = np.array([_length(text) + 2 * module.layout.fields + 1 for text in texts])
    order, room = np.argsort(-lengths, kind="stable"), _TOKENS.get(module.backbone.device.type, _MANY)
    batches, start = [], 0
    while start < len(order):
        size = max(1, room // int(lengths[order[start]]))
        batches.append(order[start : start + size])
        start += size
    return batches


def encoded_documents(
    module: FieldEncoder,
    documents: Sequence[Fields],
    *,
    progress: bool | None = False,
    label: str = "Encoding",
) -> Arrays:
    """Token ids by field → vectors, without gradients, in the order given."""
    count, width, fields = len(documents), module.backbone.dimension, module.layout.fields
    out = Arrays(
        np.empty((count, fields, width), np.float32),
        np.empty((count, fields), np.float32),
        np.empty((count, width), np.float32),
    )
    hidden = None if progress is None else not progress
    with (
        torch.inference_mode(),
        module.computing(),
        tqdm(total=count, desc=label, unit="text", delay=2, disable=hidden, leave=False) as bar,
    ):
        for rows in _batches(module, documents):
            for array, tensor in zip(out, module.documents([documents[row] for row in rows]), strict=True):
                array[rows] = tensor.float().cpu().numpy()
            bar.update(len(rows))
    return out


def encoded_queries(module: FieldEncoder, queries: Sequence[Sequence[int]], *, words: bool = True) -> Floats:
    """Token ids → vectors [Q, d], without gradients; those of their ``words`` added or not."""
    encode = module.queries if words else module.plain_queries
    out = np.empty((len(queries), module.backbone.dimension), np.float32)
    with torch.inference_mode(), module.computing():
        for rows in _batches(module, queries):
            out[rows] = encode([queries[row] for row in rows]).aggregate.float().cpu().numpy()
    return out
