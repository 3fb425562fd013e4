"""Split the leaves that hold too many documents (n documents, d width, C leaves, G new split nodes)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from tqdm.auto import tqdm

from palmette.cache import EncodingCache
from palmette.config import check_range
from palmette.data import load_data
from palmette.errors import ConfigError, InputError
from palmette.losses import ntvd
from palmette.methods.tree.living.rows import NewRows, changed, check_living, closed_over, reshaped, rows_of
from palmette.methods.tree.living.starting import unused_directions
from palmette.methods.tree.module import Tree
from palmette.methods.tree.search import reached
from palmette.methods.tree.shape import level_of, name_of, node_of
from palmette.methods.tree.task import TreeTask
from palmette.methods.tree.topics import topics_of
from palmette.pairs import EncodedPairs
from palmette.training import TrainingConfig, train

if TYPE_CHECKING:
    from pathlib import Path

    from palmette.methods.tree.model import TreeModel

__all__ = ["grow"]

Rows = NDArray[np.int64]
_M = TypeVar("_M", bound="TreeModel")

DEEPEST = 14
"""Levels that a tree may have."""
PART = 1 << 24
"""Numbers that a routing pass may hold."""
SAMPLE = 20_000
"""Documents that directions are taken from."""


def grow(
    model: _M,
    data: Any,
    training: TrainingConfig,
    *,
    crowded: float | None,
    leaves: Sequence[str],
    levels: int,
    cache: EncodingCache | str | Path | None,
    device: str | None,
    progress: bool | None,
) -> _M:
    """See :meth:`TreeModel.grow`."""
    config, encoder = model.config, model.encoder
    check_living(config, "grow")
    check_range("grow", "levels", levels, 1, DEEPEST, whole=True)
    check_range("grow", "crowded", crowded, 1)
    named = _named(model.module, leaves)
    loaded = load_data(data, seed=training.seed)
    if not loaded.trainable:
        raise InputError(
            f"{loaded.name} has no training pairs: splits are {sorted(loaded.qrels)}; 'train' is needed, or give "
            "the documents alone"
        )
    store = cache if isinstance(cache, EncodingCache) else EncodingCache(cache)
    how: dict[str, Any] = {"seed": training.seed, "progress": progress, "tokens": config.reads_tokens}
    pairs = EncodedPairs.encode(loaded, encoder, store, **how).to(encoder.device)
    tree, steps = model.module, 0
    for _ in range(levels):
        fallen = _falls(tree, pairs, progress)
        chosen = named if leaves else _crowded(tree, fallen[: len(loaded.corpus)], crowded)
        if not chosen:
            break
        inside = np.isin(tree.config.shape.levels[-1][fallen], chosen)  # [texts]
        tree = _split(tree, chosen, pairs, np.flatnonzero(inside), training.seed)
        named = [
            child for node in chosen for child in (2 * node + 1, 2 * node + 2) if level_of(child) < DEEPEST
        ]
        rows = np.flatnonzero(inside[pairs.document_rows])
        if len(rows) > 1 and training.steps:
            places = np.searchsorted(tree.config.shape.splits, np.sort(chosen))
            task = _Task(NewRows(tree, places), pairs, rows)
            done = train(task, training, device=device, progress=progress, label="Growing the tree")
            tree, steps = task.module.settle().to(encoder.device), steps + done.steps
            pairs = task.pairs.to(encoder.device)
    if tree is model.module:
        return model
    change = {"change": "grown", "documents": len(loaded.corpus), "labelled": loaded.labelled, "steps": steps}
    made = changed(model, tree, pairs, change)
    if model.topics:
        made.topics = {**topics_of(tree, pairs), **made.topics}  # new nodes have those of the new documents
    return made


def _named(tree: Tree, leaves: Sequence[str]) -> list[int]:
    """The leaves of these names."""
    if isinstance(leaves, str):
        raise ConfigError(f"grow: leaves must be a list of names, got the str {leaves!r}: write [{leaves!r}]")
    known = tree.config.shape.levels[-1].tolist()
    for name in leaves:
        if not isinstance(name, str):
            raise ConfigError(f"grow: leaves must be names such as {name_of(known[0])!r}, got {name!r}")
        if node_of(name) not in known:
            raise ConfigError(
                f"{name!r} is no leaf of this tree: its leaves are {name_of(known[0])!r} and so on"
            )
        if len(name) >= DEEPEST:
            raise ConfigError(f"leaf {name!r} lies on level {DEEPEST}, the deepest there is: it cannot split")
    return sorted({node_of(name) for name in leaves})


def _crowded(tree: Tree, fallen: Rows, limit: float | None) -> list[int]:
    """The leaves that more documents fall into than the limit, or than twice their even share."""
    every = tree.config.shape.levels[-1]
    counts = np.bincount(fallen, minlength=len(every))
    limit = max(1, 2 * len(fallen) / len(every)) if limit is None else limit
    return [node for node in every[counts > limit].tolist() if level_of(node) < DEEPEST]


@torch.no_grad()
def _routed(tree: Tree, pairs: EncodedPairs, rows: Rows) -> Tensor:
    """Leaf probabilities of some texts: [n, C]."""
    size = 32 if pairs.document_tokens is not None else max(1, PART // tree.config.leaves)
    return torch.cat([tree(pairs.document_states(rows[at : at + size])) for at in range(0, len(rows), size)])


def _falls(tree: Tree, pairs: EncodedPairs, progress: bool | None) -> Rows:
    """The leaf that each text falls into by the likelier turns: [texts] places."""
    size, found = max(1, PART // tree.config.leaves), []
    hidden = None if progress is None else not progress
    with tqdm(total=len(pairs.documents), desc="Routing", unit="text", delay=2, disable=hidden) as bar:
        for rows in np.split(np.arange(bar.total), range(size, bar.total, size)):
            found.append(reached(_routed(tree, pairs, rows).cpu().numpy(), tree.config.shape)[:, 0])
            bar.update(len(rows))
    return np.concatenate(found).astype(np.int64)


@torch.no_grad()
def _split(tree: Tree, leaves: Sequence[int], pairs: EncodedPairs, rows: Rows, seed: int) -> Tree:
    """The tree with these leaves split, begun from the documents in them (``rows``).

    Slopes are those that the level had at the start; the mean document of a leaf, each weighted by its
    probability there, goes either way.
    """
    before, nodes = tree.config, np.sort(leaves)
    depth, closed = closed_over([*before.shape.splits.tolist(), *leaves])
    config = before.replace(depth=depth, closed=closed)
    made = reshaped(tree, config, seed).to(pairs.documents.device)
    places = torch.from_numpy(np.searchsorted(config.shape.splits, nodes))
    if made.linear is not None and tree.linear is not None:
        rows = rows[:: 1 + len(rows) // SAMPLE] if len(rows) else np.arange(len(pairs.documents))[:SAMPLE]
        x = tree.embed(pairs.documents[torch.from_numpy(rows)].float()).cpu()  # [n, d]
        order = {node: column for column, node in enumerate(before.shape.levels[-1].tolist())}
        columns = [order[node] for node in nodes.tolist()]
        weights = _routed(tree, pairs, rows)[:, columns].cpu()  # [n, G]
        means = (weights / weights.sum(0).clamp_min(1e-12)).T @ x  # [G, d]
        generator = torch.Generator().manual_seed(seed)
        directions = unused_directions(tree.linear.directions.cpu(), x, len(nodes), generator)
        levels = torch.tensor([level_of(node) for node in nodes.tolist()]).double()
        made.linear.slopes[places] = (config.sharpness * config.growth**levels).to(made.linear.slopes)
        made.linear.directions[places] = directions.to(made.linear.directions)
        made.linear.offsets[places] = -(directions * means).sum(1).to(made.linear.offsets)
    if config.start == "principal":  # what a node has beyond its hyperplane starts at zero
        state = made.state_dict()
        for name in {"beyond.out", "refine.out"} & set(rows_of(config)) & set(state):
            state[name][places] = 0.0
    return made


@dataclass
class _Task:
    """The tree's own loss at the leaves, on pairs whose document falls into a leaf that was split."""

    module: NewRows
    pairs: EncodedPairs
    rows: Rows

    @property
    def metric(self) -> str:
        """What the best rows are chosen by."""
        return "ndcg@10"

    def size(self) -> int:
        """Pairs."""
        return len(self.rows)

    def to(self, device: torch.device) -> None:
        """Move the embeddings beside the tree."""
        self.pairs = self.pairs.to(device)

    def loss(self, module: nn.Module, rows: Rows, generator: torch.Generator, progress: float) -> Tensor:
        """Of these pairs."""
        whole = TreeTask(cast(Tree, self.module), self.pairs)
        return whole.loss(module, self.rows[rows], generator, progress)

    def validate(self, module: nn.Module) -> dict[str, float]:
        """At the leaves."""
        return {} if self.pairs.dev is None else self.pairs.judge(*self.pairs.held_out(module), ntvd)
