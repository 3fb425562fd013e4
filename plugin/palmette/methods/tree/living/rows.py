"""A tree of one shape made into one of another: what both have stays, bit for bit (N split nodes)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from palmette.encoder import States
from palmette.errors import ConfigError
from palmette.lexical.mix import Mix, options_key
from palmette.methods.tree.config import TreeConfig, TreeSearch
from palmette.methods.tree.module import Tree
from palmette.methods.tree.shape import level_of, name_of
from palmette.methods.tree.task import TreeTask, level_metric, table
from palmette.pairs import EncodedPairs

if TYPE_CHECKING:
    from palmette.methods.tree.model import TreeModel

__all__ = [
    "LEAVES",
    "NewRows",
    "changed",
    "check_living",
    "closed_over",
    "judged",
    "judged_anew",
    "reshaped",
    "rows_of",
]

_M = TypeVar("_M", bound="TreeModel")
Nodes = NDArray[np.int64]

LEAVES = ("ndcg@10", "recall@10", "mrr@10")
"""What a validation says of the leaves."""
FEWEST = 30
"""Held-out questions that must be there to judge a level: what fewer say of it is mostly chance."""


def check_living(config: TreeConfig, verb: str) -> None:
    """Only the product lets a node be added or dropped without the others noticing."""
    if config.propagation != "product":
        raise ConfigError(
            f"a tree with propagation={config.propagation!r} cannot {verb}: its leaves share one softmax, so that a "
            "change of one changes all; train with propagation='product'"
        )


def closed_over(splits: Iterable[int]) -> tuple[int, tuple[int, ...]]:
    """Depth and closed nodes of the tree that has these split nodes."""
    open_nodes = set(splits) | {0}
    depth = 1 + max(map(level_of, open_nodes))
    children = (child for node in open_nodes for child in (2 * node + 1, 2 * node + 2))
    leaves = (child for child in children if child not in open_nodes)
    return depth, tuple(sorted(leaf for leaf in leaves if level_of(leaf) < depth))


def rows_of(config: TreeConfig) -> tuple[str, ...]:
    """The parts of a tree's state that hold a row per split node."""
    named = [
        "linear.directions",
        "linear.offsets",
        "linear.slopes",
        "refine.inner",
        "refine.bias",
        "refine.out",
    ]
    if config.split == "mlp":
        named.append("beyond.out")
    elif config.split == "cross_attention":
        named.append("beyond.embeddings")
        if config.aggregation != "mean_then_linear":
            named.append("beyond.out")
    return tuple(named)


@torch.no_grad()
def reshaped(tree: Tree, config: TreeConfig, seed: int = 0) -> Tree:
    """A tree with the nodes of ``config``: those that ``tree`` has are its own, others as before training."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = Tree(config)
    _, here, there = np.intersect1d(tree.config.shape.splits, config.shape.splits, return_indices=True)
    old, state, rows = tree.state_dict(), made.state_dict(), rows_of(config)
    for name, value in state.items():
        source = old[name].to(value.device)
        if name == "log_multipliers":  # [D]: a new level takes over that of the last
            value.copy_(source[[min(level, len(source) - 1) for level in range(len(value))]])
        elif name not in rows:
            value.copy_(source)
        elif name == "refine.inner":  # [N, D, h]: a node reads itself and its ancestors, then nothing
            shared = min(source.shape[1], value.shape[1])
            value[there, shared:] = 0.0
            value[there, :shared] = source[here, :shared]
        else:
            value[there] = source[here]
    return made.eval()


class NewRows(nn.Module):
    """A tree of which only the rows of some nodes learn.

    Args:
        tree: The tree; its own parameters are frozen.
        places: [G] places of those nodes among its splits.
    """

    places: Tensor

    def __init__(self, tree: Tree, places: Nodes) -> None:
        super().__init__()
        self.tree = tree.requires_grad_(False)
        self.config = tree.config.replace(schedule="constant")  # coarser levels do not depend on new nodes
        self.register_buffer("places", torch.from_numpy(places))
        self.names = [name for name in rows_of(tree.config) if name in dict(tree.named_parameters())]
        self.rows = nn.ParameterList(tree.get_parameter(name)[self.places].clone() for name in self.names)

    def multiplier(self, level: int) -> Tensor:
        """The tree's."""
        return self.tree.multiplier(level)

    def embed(self, x: Tensor) -> Tensor:
        """The tree's."""
        return self.tree.embed(x)

    def forward(self, states: States, level: int | None = None) -> Tensor:
        """The tree's probabilities: [B, C_level]."""
        held = {
            name: self.tree.get_parameter(name).index_copy(0, self.places, rows)
            for name, rows in zip(self.names, self.rows, strict=True)
        }
        found: Tensor = torch.func.functional_call(self.tree, held, (states, level))
        return found

    @torch.no_grad()
    def settle(self) -> Tree:
        """The tree with what was learned."""
        for name, rows in zip(self.names, self.rows, strict=True):
            self.tree.get_parameter(name).index_copy_(0, self.places, rows)
        return self.tree.eval()


def changed(
    model: _M,
    tree: Tree,
    pairs: EncodedPairs,
    change: Mapping[str, Any],
    reached: Mapping[str, float] | None = None,
) -> _M:
    """The model of a changed tree: what changed is validated anew, what it kept has the topics it had.

    ``reached`` is what the record is to say of the leaves, if not what follows from the validation table.
    """
    metric, metrics = judged_anew(model, tree, pairs)
    metrics = {**metrics, **(reached or {})}
    sizes = {"leaves before": model.config.leaves, "leaves": tree.config.leaves}
    record = model.record.changed({**change, "data": pairs.data.name, **sizes}, metric, metrics)
    made = type(model)(tree.config, model.encoder, tree, record=record)
    made.mixes = _mixes(model, made)
    inner = map(name_of, tree.config.shape.splits.tolist())
    kept = {*inner, *map(name_of, tree.config.shape.levels[-1].tolist())}
    made.topics = {name: terms for name, terms in model.topics.items() if name in kept}
    return made


def _mixes(model: TreeModel, made: TreeModel) -> dict[str, Mix]:
    """Of the searches that there still are; the leaves' own is that of the level which they lie on now.

    Levels that are new have that of the leaves above them: scores keep their range.
    """
    kept = {name: model.mixes[name] for name in map(options_key, made.calibrated()) if name in model.mixes}
    level = model.mixes.get(options_key(TreeSearch(level=made.config.depth)))
    return {**kept, **({} if level is None else {"": level})}


def judged_anew(model: TreeModel, tree: Tree, pairs: EncodedPairs) -> tuple[str, dict[str, float]]:
    """The model's validation table, for a changed tree: a level that stayed has the row it had.

    These data ask other questions than the table's. What they tell of a level is how much better or worse it is than
    the one that it was, or lies under: so much does the row change, if enough questions are held out.
    """
    known, old, new = model.record.metrics, model.config.shape, tree.config.shape
    few = pairs.dev is None or len(pairs.dev.queries) < FEWEST
    metric, found = judged(tree, pairs) if not few else (TreeTask(tree, pairs).metric, {})
    if any(level_metric(level) not in known for level in range(1, old.depth + 1)):
        return metric, found
    before = {} if few else judged(model.module, pairs)[1]

    def row(name: str, source: str) -> float:
        change = found[name] / before[source] if before.get(source) else 1.0
        return min(1.0, known[source] * change)

    levels = []
    for level in range(1, new.depth + 1):
        source = level_metric(min(level, old.depth))
        stayed = level <= old.depth and np.array_equal(old.levels[level], new.levels[level])
        levels.append(known[source] if stayed else row(level_metric(level), source))
    leaves = {name: row(name, name) for name in LEAVES if name in known} | {"ndcg@10": levels[-1]}
    return metric, table(tree.config, leaves, levels)


def judged(tree: Tree, pairs: EncodedPairs) -> tuple[str, dict[str, float]]:
    """Validation of all levels."""
    task = TreeTask(tree, pairs)
    with torch.inference_mode():
        return task.metric, task.validate(tree)
