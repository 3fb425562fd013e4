# moved: delete after the merge (`set_dropout` is in backbone; Backbone chooses its attention itself)
"""Former home of set_dropout, and attention that learns on a CPU."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from palmette.encoder.backbone import set_dropout as set_dropout


def learning_attention() -> AbstractContextManager[Any]:
    """Avoid fused attention while something learns in bfloat16 on a CPU."""
    learns = torch.is_grad_enabled() and torch.is_autocast_enabled("cpu")
    return sdpa_kernel(SDPBackend.MATH) if learns else nullcontext()
