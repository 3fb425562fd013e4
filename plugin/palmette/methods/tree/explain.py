"""Explanations: where two texts overlap in the tree, what its nodes are about, and an outline of all of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import Rows, as_floats, evenly_spaced
from palmette.config import check_range
from palmette.errors import ConfigError, InputError
from palmette.lexical.terms import TopicTerms, add_counts, count_terms, divergence, top_terms
from palmette.methods.base import Arrays
from palmette.methods.tree.leaves import ADAPTED, LEAVES, greedy_leaf, name_of_leaf
from palmette.store.protocols import by_documents
from palmette.types import Explanation, Part

if TYPE_CHECKING:
    from palmette.methods.tree.training import TreeTask

BOTH = 0.5
"""Least probability with which both texts must be under a node that is named as their topic."""
TOPIC_LEVELS = 2
"""Levels above the leaves where a node is still one topic."""
TERMS_OF_A_TOPIC = 3
"""Terms of a topic in a sentence."""
EXPLAINED_DOCUMENTS = 50_000
"""Documents of a training that topics are read from."""
OUTLINED_DOCUMENTS = 100_000
"""Documents of an index that topics are read from."""
TERMS_OF_A_NODE = 5
"""Terms of a node in an outline."""
DOCUMENTS_AT_ONCE = 1024
"""Documents whose leaves are read at a time."""


def node_masses(rows: NDArray[Any]) -> NDArray[np.float64]:
    """Probability of every node, from the root down, given those of a level's nodes: [n, 2^h] → [n, 2^(h+1) − 1]."""
    depth = rows.shape[1].bit_length() - 1
    wide = rows.astype(np.float64)
    return np.concatenate([wide.reshape(len(rows), 2**h, -1).sum(2) for h in range(depth + 1)], axis=1)


# -- topics: terms that are frequent under a node and rare elsewhere -------------------------------------------


def topics_of_texts(texts: Iterable[str], leaves: Rows, depth: int, *, terms: int = 8) -> TopicTerms:
    """Up to ``terms`` terms, with weights, of every node that has any: by name, from the texts' leaves [n]."""
    spelled, text, term = count_terms(texts)
    totals, topics = np.bincount(term, minlength=len(spelled)), dict[int, list[tuple[str, float]]]()
    below, count = leaves[text], np.ones(len(term), np.int64)
    for level in range(depth, 0, -1):
        below, term, count = add_counts(below, term, count, len(spelled))
        texts_in = np.bincount(leaves >> (depth - level), minlength=2**level)
        weight = divergence(count, texts_in[below], totals[term], len(leaves))
        for place, chosen in top_terms(below, term, weight, spelled, terms):
            topics[2**level - 1 + place] = chosen
        below = below >> 1
    return {name_of_leaf(node): topics[node] for node in sorted(topics)}


def topics_of_training(task: TreeTask) -> TopicTerms:
    """Terms of a tree's nodes in the corpus that it was trained on (an even sample of a large one)."""
    config, corpus = task.module.config, task.pairs.data.corpus
    chosen = evenly_spaced(len(corpus), EXPLAINED_DOCUMENTS)
    leaves = np.concatenate([greedy_leaf(part) for part in task.leaves(chosen)])
    return topics_of_texts((corpus[row].content for row in chosen.tolist()), leaves, config.depth)


def outline(index: Any, *, level: int | None = None) -> str:
    """Outline the tree of an index: a line for each node that has documents, with their number and the node's terms.

    A document belongs to the likelier node at every split. Nodes are named by their turns from the root, and indented.

    Args:
        index: The :class:`palmette.Index` of a :class:`~palmette.TreeModel`.
        level: Deepest level shown; ``None`` for the leaves.
    """
    if index.model.method != "tree":
        raise ConfigError(f"only a tree has an outline; this index is of method {index.model.method!r}")
    depth = index.model.config.depth
    check_range("outline", "level", level, 1, depth, whole=True)
    with index.backend.read() as view:
        keys = view.keys()
        if not len(keys):
            raise InputError("this index holds no documents to outline the tree with: add some first")
        # 1. The leaf of each document, and the terms of each node, from the texts of an even sample.
        parts = np.split(keys, range(DOCUMENTS_AT_ONCE, len(keys), DOCUMENTS_AT_ONCE))
        leaf = np.concatenate([greedy_leaf(as_floats(view.rows(LEAVES, part.tolist()))) for part in parts])
        sampled = evenly_spaced(len(keys), OUTLINED_DOCUMENTS)
        texts = (document.content for part in by_documents(view, keys[sampled]) for document in view.documents(part))
        topics = topics_of_texts(texts, leaf[sampled], depth, terms=TERMS_OF_A_NODE)
    # 2. A line for each node; in the order of their names a node comes before those below it.
    lines = {"": f"{len(keys):,} documents"}
    for down in range(1, (level or depth) + 1):
        counts = np.bincount(leaf >> (depth - down), minlength=2**down)
        for place in np.flatnonzero(counts).tolist():
            name = name_of_leaf(2**down - 1 + place)
            words = ", ".join(term for term, _ in topics.get(name, ()))
            lines[name] = f"{'  ' * down}{name}  {counts[place]:,}  {words}".rstrip()
    return "\n".join(lines[name] for name in sorted(lines))


# -- one hit ---------------------------------------------------------------------------------------------------


def explain(query: Arrays, arrays: Arrays, level: int | None, depth: int, topics: TopicTerms) -> Explanation:
    """Explain the overlap at a level, or the cosine where that is the score (``level`` is ``None``).

    Parts of an overlap are by the node where they leave the path of the larger shares, from the root down. Of a
    cosine the path is an illustration.
    """
    leaves = np.stack([as_floats(a[LEAVES]).reshape(-1) for a in (query, arrays)])  # [2, C]
    nodes = leaves.reshape(2, 2 ** (level or depth), -1).sum(2, dtype=np.float64).astype(np.float32)
    rows = np.concatenate([nodes, nodes.min(0, keepdims=True)])  # query, document, overlap
    in_query, in_document, shared = node_masses(rows).tolist()
    parts, steps, node, topic = [], [], 0, None
    for down in range(1, (level or depth) + 1):
        turn, other = (2, 1) if shared[2 * node + 2] > shared[2 * node + 1] else (1, 2)
        off, node = 2 * node + other, 2 * node + turn
        name = name_of_leaf(node)
        parts.append(Part(f"subtree {name_of_leaf(off)}", shared[off], {"node": name_of_leaf(off)}))
        step = {"node": name, "query": in_query[node], "document": in_document[node]}
        step["topic"] = [term for term, _ in topics.get(name, ())]
        steps.append(step)
        if step["topic"] and down >= depth - TOPIC_LEVELS and min(in_query[node], in_document[node]) >= BOTH:
            topic = step
    kind, path = "leaf" if len(nodes[0]) == leaves.shape[1] else "node", name_of_leaf(node)
    parts.append(Part(f"{kind} {path}", shared[node], {"node": path}))
    brief = f"both about: {', '.join(topic['topic'][:TERMS_OF_A_TOPIC])}" if topic else ""
    score, text = shared[0], f"overlap {shared[0]:.3f}"
    if level is None:
        vectors = (x[ADAPTED].reshape(1, -1).astype(np.float64) for x in (query, arrays))
        score = float(np.einsum("nd,nd->n", *vectors).astype(np.float32)[0])
        parts, text = [Part("cosine in the tree's space", score)], f"cosine {score:.3f}"
    text = f"{text}; {brief}" if brief else text
    return Explanation(score, parts, text, {"path": path, "nodes": steps, "topic": topic}, brief=brief)
