"""Where training begins.

With gentle slopes a node's probability is nearly linear in the embedding, so that nTVD is an L1 sketch of the
encoder's own distance: a tree of principal directions retrieves about as well as the encoder before its first
step. Measured beside a random start in ``tests/benchmarks/results/``.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from palmette.errors import TrainingError
from palmette.methods.tree.config import TreeConfig
from palmette.methods.tree.lessons import Made, learn_space
from palmette.methods.tree.module import Tree
from palmette.methods.tree.shape import level_of
from palmette.methods.tree.task import TreeTask
from palmette.methods.tree.upper import learn_upper
from palmette.pairs import EncodedPairs

__all__ = ["begin", "started"]

PART = 16_384
"""Rows that are held in double precision at a time."""


def started(
    config: TreeConfig,
    pairs: EncodedPairs,
    seed: int,
    progress: bool | None,
    made: Made | None = None,
) -> TreeTask:
    """A tree as training begins with it: the space, the hyperplanes, those of the upper levels, the multipliers.

    Where ``made`` gives pairs made of the documents, the space may be learned from these, and the tree is then too.
    """
    if len(pairs) < 2:
        held = 0 if pairs.dev is None else len(pairs.dev.queries)
        raise TrainingError(
            f"training needs at least 2 pairs of question and document, got {len(pairs)}, beside {held} held out to "
            "validate with: give more"
        )
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        tree = Tree(config)
    if tree.adapter is not None:
        pairs = learn_space(tree.adapter, pairs, made, seed, progress)
    begin(tree, pairs.documents, generator)
    if config.start == "principal" and config.propagation != "none":
        learned = learn_upper(tree, pairs, seed, progress)
        if learned:
            begin(tree, pairs.documents, generator, learned)
    task = TreeTask(tree, pairs)
    task.fit_multipliers(generator)
    return task


def _directions(config: TreeConfig, x: Tensor, generator: torch.Generator, first: Tensor) -> Tensor:
    """Directions [N, d], level by level, of which the ``first`` [n, d] are given; the others have length 1.

    ``principal``: the principal directions of what those leave of the corpus, then random orthonormal bases, whose
    sketch of a distance is steadier than one of independent directions. ``random``: independent ones.
    """
    if config.start == "random":
        drawn = torch.randn(config.scored, config.width, generator=generator)
        directions: Tensor = drawn / drawn.norm(dim=1, keepdim=True)
        return directions
    parts = [first, _principal(x, first)]
    while sum(map(len, parts)) < config.scored:
        parts.append(torch.linalg.qr(torch.randn(config.width, config.width, generator=generator))[0])
    return torch.cat(parts)[: config.scored]


def _principal(x: Tensor, given: Tensor) -> Tensor:
    """Principal directions of [N, d] outside the span of those ``given`` [n, d], widest first: [min(N, d − n), d].

    Eigenvectors of the covariance, summed in pieces: the memory is that of [d, d], however many documents.
    """
    mean = x.mean(0, dtype=torch.float64)  # [d]
    covariance = torch.zeros(len(mean), len(mean), dtype=torch.float64)  # [d, d]
    for part in torch.split(x, PART):
        centred = part.double() - mean
        covariance += centred.T @ centred
    span, _ = torch.linalg.qr(given.double().T)  # [d, n]
    outside = torch.eye(len(mean), dtype=torch.float64) - span @ span.T
    _, vectors = torch.linalg.eigh(outside @ covariance @ outside)  # ascending, as columns
    axes: Tensor = vectors.flip(1).T[: min(len(x), len(mean) - len(given))].float()
    return axes


def _slopes(config: TreeConfig) -> Tensor:
    """Steepness [N]: growing from level to level; without a tree the same everywhere."""
    if config.propagation == "none":
        return torch.full((config.scored,), config.sharpness)
    levels = torch.tensor([level_of(node) for node in config.shape.splits.tolist()]).double()
    return (config.sharpness * config.growth**levels).float()


@torch.no_grad()
def begin(tree: Tree, x: Tensor, generator: torch.Generator, learned: int = 0) -> None:
    """Set the hyperplanes, but for the first so many ``learned`` ones, from the embeddings of all documents [N, d].

    What a tree has beyond hyperplanes starts at zero.
    """
    config = tree.config
    if tree.linear is not None:
        x = torch.cat([tree.embed(part.float().cpu()) for part in torch.split(x, PART)])
        directions = _directions(config, x, generator, tree.linear.directions[:learned])  # [S, d]
        tree.linear.slopes.copy_(_slopes(config))
        tree.linear.directions.copy_(directions)
        centred = -directions @ x.mean(0)  # the average document goes either way
        tree.linear.offsets[learned:] = centred[learned:]
    if config.start == "principal":
        for part in (tree.beyond, tree.refine, tree.learned):
            if part is not None:
                readout = part.out
                assert isinstance(readout, nn.Parameter)
                readout.zero_()
