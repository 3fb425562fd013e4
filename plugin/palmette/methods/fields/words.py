"""What a query's words add to its vector, where the encoder itself stays as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["QueryWords"]


class QueryWords(nn.Module):
    """A vector for each token of the queries that train; all others', and all at first, are zero.

    A few hundred queries tell what a shop's words stand for ("monitor": no arm for one) at the cost of a table:
    a step moves the rows of its own tokens alone.

    Args:
        vocabulary: How many tokens there are.
        count: How many of them get a vector.
        width: Of a query's vector.
    """

    rows: Tensor
    paces: ClassVar[dict[str, float]] = {"table": 40.0}
    """It begins at zero, and may go faster than what was pretrained would."""

    def __init__(self, vocabulary: int, count: int, width: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(count + 1, width))  # the last row is that of all other tokens
        self.register_buffer("rows", torch.full((vocabulary,), count))

    def hold(self, tokens: NDArray[np.integer[Any]]) -> None:
        """Which tokens have a vector: distinct ids [count]."""
        self.rows[torch.as_tensor(tokens, device=self.rows.device).long()] = torch.arange(
            len(tokens), device=self.rows.device
        )

    def forward(self, queries: Sequence[Sequence[int]]) -> Tensor:
        """Token ids of B queries → the sum of their tokens' vectors [B, d]."""
        other = len(self.table) - 1
        parts = [self.rows[torch.tensor(ids, dtype=torch.long, device=self.rows.device)] for ids in queries]
        rows = nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=other)  # [B, T]
        sparse = torch.is_grad_enabled()
        return F.embedding(rows, self.table, padding_idx=other, sparse=sparse).sum(1)
