"""States: the output of one forward pass, as torch tensors or as NumPy arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class States:
    """Output of one forward pass over B texts: float32, ``None`` if not requested.

    An encoder that computes with torch gives tensors on its device, any other one NumPy arrays.

    Attributes:
        pooled: [B, d], the model's own sentence vector (its pooling and all that follows it).
        tokens: [B, T, d], the last hidden states.
        layers: [B, L + 1, T, d], all hidden states, the embeddings first.
        mask: [B, T], true where there is a token; set whenever tokens or layers are.
        offsets: [B, T, 2], each token's first character and the one after its last, equal where it has none (those
            at both ends, the prompt's, padding); an array, ``None`` unless the encoder has offsets.
    """

    pooled: Any = None
    tokens: Any = None
    layers: Any = None
    mask: Any = None
    offsets: NDArray[np.int64] | None = None

    def tensors(self, device: torch.device | str) -> States:
        """Return the states as torch tensors on a device."""
        import torch

        def tensor(value: Any) -> Any:
            return None if value is None else torch.as_tensor(value, device=device)

        return States(tensor(self.pooled), tensor(self.tokens), tensor(self.layers), tensor(self.mask), self.offsets)


def sum_rows(values: Any, rows: NDArray[np.int64], count: int) -> Any:
    """Add values [n, w] up by the row [n] of each: [count, w], as a tensor if the values are one."""
    if isinstance(values, np.ndarray):
        order = np.argsort(rows, kind="stable")
        present, first = np.unique(rows[order], return_index=True)
        sums = np.zeros((count, values.shape[1]), np.float32)
        if len(rows):
            sums[present] = np.add.reduceat(values[order], first, axis=0)
        return sums
    import torch

    index = torch.from_numpy(rows).to(values.device)
    return torch.zeros((count, values.shape[1]), device=values.device).index_add_(0, index, values)


def like(values: NDArray[Any], other: Any) -> Any:
    """Return an array as a tensor on the device of ``other``, if that is a tensor."""
    if isinstance(other, np.ndarray):
        return values
    import torch

    return torch.from_numpy(values).to(other.device)
