"""The upper splits first: what few columns a coarse level has should be those that tell most apart.

Principal directions keep as much of a distance as so few directions can, which is not what tells an answer from the
rest best. So the splits of the first levels learn ahead of the others, all these levels at once, as nested
representations do (https://arxiv.org/abs/2205.13147), and each level with its own multiplier: overlaps of few gentle
columns differ by little. The deeper splits, which make most of the finest level, stay where they begin. The rate,
how far to go and whether to go at all are chosen on held-out queries. Takes seconds on a CPU.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from palmette.methods.tree.ahead import learn_ahead
from palmette.methods.tree.module import Tree
from palmette.methods.tree.task import TreeTask
from palmette.pairs import EncodedPairs
from palmette.training import TrainingConfig

__all__ = ["learn_upper"]

RATES = (1e-3, 3e-3)
HOW = TrainingConfig(steps=300, batch_size=256, evaluate_every=100, clip=0.0, precision="float32")
PASSES = 100
"""Over few pairs at most."""


def learn_upper(tree: Tree, pairs: EncodedPairs, seed: int, progress: bool | None) -> int:
    """Train the splits of the first ``upper`` levels where that helps the held-out queries; how many there are."""
    levels, whole = min(tree.config.upper, tree.config.depth), tree.linear
    if not levels or whole is None or pairs.dev is None or len(pairs) < 2:
        return 0
    pooled = replace(pairs, query_tokens=None, document_tokens=None)
    task = TreeTask(_upper(tree, levels), pooled)
    own = task.module.linear
    assert own is not None
    task.fit_multipliers(torch.Generator().manual_seed(seed))
    how = HOW.replace(seed=seed)
    learn_ahead(task, how, RATES, passes=PASSES, label="Training the upper splits", progress=progress)
    n = len(own.offsets)
    if torch.equal(own.directions, whole.directions[:n]):
        return 0
    with torch.no_grad():
        whole.directions[:n], whole.offsets[:n] = own.directions, own.offsets
    return n


def _upper(tree: Tree, levels: int) -> Tree:
    """The first levels of a tree as one of their own, in the same space."""
    assert tree.linear is not None
    config = tree.config.replace(
        depth=levels, split="linear", propagation="product", schedule="matryoshka", l1=0.0, dropout=0.0
    )
    upper = Tree(config)
    upper.paces = {"log_multipliers": 5.0}
    upper.adapter = tree.adapter
    assert upper.linear is not None
    n = len(upper.linear.offsets)
    upper.linear.load_state_dict({name: value[:n] for name, value in tree.linear.state_dict().items()})
    return upper
