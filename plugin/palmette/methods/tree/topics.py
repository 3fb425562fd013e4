"""What the texts under a node speak of: terms that are frequent there and rare elsewhere (``lexical/terms.py``)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from palmette.lexical.terms import (
    Terms,
    log_odds,
    merged,
    occurrences,
    strongest,
    terms_from_json,
    terms_to_json,
)
from palmette.methods.tree.branches import Branches
from palmette.methods.tree.search import reached
from palmette.methods.tree.shape import name_of

if TYPE_CHECKING:
    from palmette.methods.tree.module import Tree
    from palmette.pairs import EncodedPairs

__all__ = ["Topics", "topics", "topics_from_json", "topics_of", "topics_to_json"]

Ints = NDArray[np.int64]
Topics = Terms
"""Node (its turns from the root) → its terms with their weights, strongest first."""

SAMPLE, PART = 50_000, 1024
"""Texts of a training whose words are read, and how many are routed at a time."""


def topics(
    texts: Iterable[str], leaves: Ints, branches: Branches, *, terms: int = 8
) -> dict[str, list[tuple[str, float]]]:
    """The terms of every node that has any.

    Args:
        texts: Texts.
        leaves: [n] place of the leaf each text falls into, by the likelier turn at every split.
        branches: The tree.
        terms: How many per node at most.
    """
    spelled, text, term = occurrences(texts)
    totals, texts_in = np.bincount(term, minlength=len(spelled)), branches.counted(leaves)
    node, count = leaves[text], np.ones(len(term), np.int64)
    found: dict[str, list[tuple[str, float]]] = {}
    for level in range(int(branches.level.max()), 0, -1):  # deepest first; each node then joins its parent
        node, term, count = merged(node, term, count, len(spelled))
        here = branches.level[node] == level
        weight = log_odds(count[here], texts_in[node[here]], totals[term[here]], len(leaves))
        for place, chosen in strongest(node[here], term[here], weight, spelled, terms):
            found[branches.names[place]] = chosen
        node = np.where(here, branches.parent[node], node)
    return {name: found[name] for name in branches.names if name in found}


def topics_of(tree: Tree, pairs: EncodedPairs) -> dict[str, list[tuple[str, float]]]:
    """The terms of a tree's nodes in the corpus that it was trained on (an even sample of a large one)."""
    shape = tree.config.shape
    if tree.config.propagation == "none":
        return {}  # leaves, but no tree
    branches = Branches([name_of(node) for node in shape.levels[-1].tolist()])
    pairs = pairs.to(next(tree.parameters()).device)
    corpus = pairs.data.corpus
    chosen = np.unique(np.linspace(0, len(corpus) - 1, min(len(corpus), SAMPLE)).astype(np.int64))
    texts = [corpus[row].content for row in chosen.tolist()]
    part = PART if pairs.document_tokens is None else PART // 32
    fallen = []
    with torch.inference_mode():
        for start in range(0, len(chosen), part):
            leaves = tree(pairs.document_states(chosen[start : start + part])).cpu().numpy()  # [part, C]
            fallen.append(branches.leaves[reached(leaves, shape)[:, 0]])
    return topics(texts, np.concatenate(fallen), branches)


def topics_to_json(topics: Topics) -> bytes:
    """For a checkpoint."""
    return terms_to_json(topics)


def topics_from_json(data: bytes, where: str = "topics.json") -> Topics:
    """Read back what :func:`topics_to_json` wrote; anything else raises CheckpointError."""
    return terms_from_json(data, where, lambda name: set(name) <= {"L", "R"}, "node such as 'LRL'")
