"""Attention that learns on a CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

__all__ = ["learning_attention", "set_dropout"]

SHORT = 192
"""Tokens up to which all weights of attention are held at once, one matrix for each head and text."""


class _Learning(TorchFunctionMode):
    """Calls of attention pass through here."""

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """As it would be, but for attention."""
        given = dict(kwargs or {})
        if func is not F.scaled_dot_product_attention or len(args) != 3:
            return func(*args, **given)
        query, key, value = args
        if query.device.type != "cpu" or query.dtype != torch.bfloat16 or not query.requires_grad:
            return func(*args, **given)
        mask, dropped = given.get("attn_mask"), given.get("dropout_p", 0.0)
        if key.shape[2] <= SHORT and not dropped and not given.get("is_causal"):
            return _plain(query, key, value, mask, given.get("scale"))
        if mask is not None and mask.is_floating_point():
            given["attn_mask"] = mask.float()
        with torch.autocast("cpu", enabled=False):
            seen = func(query.float(), key.float(), value.float(), **given)
        return seen.to(query.dtype)


def learning_attention() -> AbstractContextManager[Any]:
    """While it is entered, attention that learns in bfloat16 on a CPU avoids torch's fused one.

    The gradient of that takes torch 2.13 220 ms a layer for 64 texts of 72 tokens, and 50 ms in float32: longer
    than all of the rest, which bfloat16 makes two to three times faster. Short texts take plain products, long ones
    the fused attention in float32. On a GPU, in float32, and where nothing learns, nothing changes.
    """
    return _Learning() if torch.is_grad_enabled() else nullcontext()


def _plain(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    """softmax(q kᵀ / √w) v of [B, heads, T, w] each; the mask is True where one may look, or is added."""
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None:
        lowest = torch.finfo(scores.dtype).min
        scores = scores + mask if mask.is_floating_point() else scores.masked_fill(~mask, lowest)
    weights = scores.softmax(-1, dtype=torch.float32).to(value.dtype)  # [B, heads, T, T]
    return weights @ value


def set_dropout(network: nn.Module, share: float) -> None:
    """Leave out so much of the hidden values while a transformer learns, and nothing of its attention weights.

    These rule out fused attention on a CPU, and cost as much time there as all the rest.
    """
    for name, part in network.named_modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0 if "attention" in name and "output" not in name else share
