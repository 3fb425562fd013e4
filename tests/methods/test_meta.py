"""Without a GPU: modules run on ``meta`` tensors, where a constant left on another device raises.

The transformer that fields train looks at its mask's values, which ``meta`` tensors lack: its states are given.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from palmette.encoder import States
from palmette.methods.fields.module import Pooled
from regression import record


def made(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def layers_of(module: torch.nn.Module, width: int) -> object:
    config = module.config
    states = [made(6, 4, config.states)] * len(config.query_layers)
    return module(states, made(6, 4, dtype=torch.bool), made(6, config.vector))


def fields_of(module: torch.nn.Module, width: int) -> object:
    count = module.layout.fields
    codes, there = made(6, 9, dtype=torch.int64), made(6, count, dtype=torch.bool)
    masks = module.layout.mask(codes), module.layout.members(codes), module.layout.present_fields(codes)
    return masks, module("pooled", Pooled(made(6, count, width), made(6, width), there, there))


def taxonomy_of(module: torch.nn.Module, width: int) -> object:
    return module(made(6, width), made(6, width), torch.zeros(6, dtype=torch.int64, device="meta"))


RUNS: dict[str, Callable[[torch.nn.Module, int], object]] = {
    "fields": fields_of,
    "layers": layers_of,
    "paths": lambda module, width: (module(made(6, width)), module.indexer.beam(made(6, width), 3)),
    "taxonomy": taxonomy_of,
    "tree": lambda module, width: module(States(made(6, width))),
}


def tensors(out: object) -> Iterator[Tensor]:
    if isinstance(out, Tensor):
        yield out
    elif isinstance(out, Sequence):
        for part in out:
            yield from tensors(part)


@pytest.mark.parametrize("method", RUNS)
def test_modules_compute_where_they_are(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "autocast", lambda *_, **how: nullcontext())  # knows no meta device
    model = record.model(method)
    found = list(tensors(RUNS[method](copy.deepcopy(model.module).to("meta").train(), model.encoder.dimension)))
    assert found
    assert {one.device.type for one in found} == {"meta"}
