"""A transformer's layers one by one: passes that stop early, and weights to begin other networks with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from torch import Tensor, nn

__all__ = ["Copies", "copies_of", "stopped"]

_NAMES: tuple[Mapping[str, str], ...] = (
    {  # BERT, RoBERTa, XLM-RoBERTa, ELECTRA
        "attention.self.query": "query",
        "attention.self.key": "key",
        "attention.self.value": "value",
        "attention.output.dense": "attended",
        "attention.output.LayerNorm": "norms.0",
        "intermediate.dense": "inner",
        "output.dense": "outer",
        "output.LayerNorm": "norms.1",
    },
    {  # DistilBERT
        "attention.q_lin": "query",
        "attention.k_lin": "key",
        "attention.v_lin": "value",
        "attention.out_lin": "attended",
        "sa_layer_norm": "norms.0",
        "ffn.lin1": "inner",
        "ffn.lin2": "outer",
        "output_layer_norm": "norms.1",
    },
)


class Copies(NamedTuple):
    """Weights of some transformer layers, first to last, and their attention heads.

    A layer has ``query``, ``key``, ``value``, ``attended`` (what attention ends in), ``inner`` and ``outer`` (its
    two-layer network), ``norms.0`` and ``norms.1``, each a ``.weight`` and a ``.bias``.
    """

    heads: int
    layers: list[dict[str, Tensor]]


def _stacks(model: nn.Module, layers: int) -> Iterator[tuple[nn.Module, str, nn.ModuleList]]:
    """The lists of that many layers, and where they hang."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.ModuleList) and len(child) == layers:
                yield parent, name, child


@contextmanager
def stopped(model: nn.Module, layers: int, depth: int) -> Iterator[None]:
    """Inside, the model has only the first ``depth`` of its layers; not for several threads at once."""
    stacks = list(_stacks(model, layers))
    for parent, name, stack in stacks:
        setattr(parent, name, stack[:depth])
    try:
        yield
    finally:
        for parent, name, stack in stacks:
            setattr(parent, name, stack)


def copies_of(model: nn.Module, layers: int, count: int, heads: int) -> Copies | None:
    """The last ``count`` layers of a model that has one stack of BERT's kind, else ``None``."""
    stacks = list(_stacks(model, layers))
    if len(stacks) != 1:
        return None
    found = []
    for layer in list(stacks[0][2])[layers - count :]:
        weights = {name: value.detach().float().cpu().clone() for name, value in layer.state_dict().items()}
        for names in _NAMES:
            wanted = {f"{old}.{kind}" for old in names for kind in ("weight", "bias")}
            if wanted == set(weights):
                renamed = {}
                for name, value in weights.items():
                    old, _, kind = name.rpartition(".")
                    renamed[f"{names[old]}.{kind}"] = value
                found.append(renamed)
    return Copies(heads, found) if len(found) == count else None
