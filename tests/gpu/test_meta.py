"""Without a GPU: modules run on ``meta`` tensors, where a constant left on another device raises.

Those of paths and layers look at values, which ``meta`` tensors lack.
"""

from __future__ import annotations

import copy

import pytest
import torch

from palmette.devices import check_device
from palmette.encoder import States
from palmette.errors import ConfigError
from support import tiny


@pytest.mark.parametrize("method", ["tree", "taxonomy"])
def test_modules_compute_where_they_are(method: str) -> None:
    model = tiny.METHODS[method]()
    module = copy.deepcopy(model.module).to("meta").train()
    texts = torch.empty(6, model.encoder.dimension, device="meta")
    calls = {
        "tree": lambda: [module(States(texts))],
        "taxonomy": lambda: list(module(texts, texts, torch.zeros(6, dtype=torch.int64, device="meta"))),
    }
    for out in calls[method]():
        parts = out if isinstance(out, tuple | list) else [out]
        assert all(part.device.type == "meta" for part in parts if isinstance(part, torch.Tensor))


def test_a_device_that_computes_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="'meta' cannot be used here"):
        check_device("meta")
