"""A transformer's layers one by one: passes that stop early, and weights to begin other networks with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn

__all__ = ["Copies", "Stops", "copies_of", "stopped"]

STATES = "all_layer_embeddings"
"""What sentence-transformers calls the hidden states of a pass, the embeddings first."""
SAME = 1e-3
"""Relative error up to which a pass that stopped gives what a whole one does."""

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
def stopped(model: nn.Module, layers: int, depth: int) -> Iterator[list[Tensor]]:
    """Inside, the model has only the first ``depth`` of its layers; not for several threads at once.

    What the last of them gives is appended to the list. A model whose layers are not modules in one list keeps all.
    """
    stacks = list(_stacks(model, layers))
    parents = [parent for parent, _, _ in stacks]
    stacks = [one for one in stacks if parents.count(one[0]) == 1]  # XLM has a list for each part of a layer
    given: list[Tensor] = []

    def keep(_layer: nn.Module, _args: Any, out: Any) -> None:
        given.append(out if isinstance(out, Tensor) else out[0])

    hooks = [stack[depth - 1].register_forward_hook(keep) for _, _, stack in stacks]
    for parent, name, stack in stacks:
        setattr(parent, name, stack[:depth])
    try:
        yield given
    finally:
        for parent, name, stack in stacks:
            setattr(parent, name, stack)
        for hook in hooks:
            hook.remove()


class Stops:
    """Passes of one model that stop early, with the very states that a whole pass has.

    In BERT a pass ends in what its last layer gives, wherever it stops. A model that puts a norm on the end of a pass
    (ModernBERT, T5) puts it on any layer that comes last, where a whole pass has what the layer gives. Which of both it
    is gets looked up by one whole pass, once for each depth and only where they differ. Where it is neither, and where
    layers are not modules in a list (ALBERT, XLM), all layers run.
    """

    _ends: dict[int, int | None]
    """Depth → 0 for what a pass ends in, 1 for what its last layer gives, or neither; those that differed."""

    def __init__(self, model: nn.Module, layers: int) -> None:
        self._model, self._layers, self._ends = model, layers, {}

    def run(self, depth: int, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What ``run`` gives, with the first ``depth`` + 1 hidden states."""
        if depth == self._layers or self._ends.get(depth, 0) is None:
            return _first(run(), depth)
        with stopped(self._model, self._layers, depth) as given:
            features = run()
        states = list(features[STATES])
        if not given or given[-1] is states[-1]:
            return _first(features, depth)
        ends = [states, [*states[:-1], given[-1]]]
        if depth not in self._ends:
            whole = _first(run(), depth)
            right = [end for end, made in enumerate(ends) if _alike(made, whole[STATES])]
            self._ends[depth] = right[0] if right else None
            return whole
        return {**features, STATES: ends[self._ends[depth] or 0]}


def _first(features: dict[str, Any], depth: int) -> dict[str, Any]:
    """With the embeddings and the first layers' states."""
    return {**features, STATES: list(features[STATES])[: depth + 1]}


def _alike(made: list[Tensor], wanted: list[Tensor]) -> bool:
    """Whether two passes have the same states."""
    return len(made) == len(wanted) and all(
        a.shape == b.shape and float((a.float() - b.float()).norm()) <= SAME * float(b.float().norm())
        for a, b in zip(made, wanted, strict=True)
    )


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
