"""Explanations: where two texts overlap in the tree, and what the nodes there are about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from palmette.arrays import as_floats, evenly_spaced
from palmette.lexical.terms import Terms, add_counts, count_terms, log_odds, top_terms
from palmette.methods.tree.module import Tree, name_of
from palmette.methods.tree.search import ADAPTED, LEAVES, greedy_leaf
from palmette.training.pairs import TrainingPairs
from palmette.types import Explanation, Part

Ints = NDArray[np.int64]
Arrays = Mapping[str, NDArray[Any]]
PLACES, TERMS = 2, 3
"""Nodes that an explanation's sentence names, and terms of each."""
SAMPLE, PART = 50_000, 1024
"""Documents of a training that topics are read from, and how many are routed at a time."""


def node_masses(rows: NDArray[Any]) -> NDArray[np.float64]:
    """Probability of every node, from the root down, given those of a level's nodes: [n, 2^h] → [n, 2^(h+1) − 1]."""
    depth = rows.shape[1].bit_length() - 1
    wide = rows.astype(np.float64)
    return np.concatenate([wide.reshape(len(rows), 2**h, -1).sum(2) for h in range(depth + 1)], axis=1)


# -- topics: terms that are frequent under a node and rare elsewhere -------------------------------------------


def topics_of_texts(texts: Iterable[str], leaves: Ints, depth: int, *, terms: int = 8) -> Terms:
    """Up to ``terms`` terms, with weights, of every node that has any: by name, from the texts' leaves [n]."""
    spelled, text, term = count_terms(texts)
    totals, found = np.bincount(term, minlength=len(spelled)), dict[int, list[tuple[str, float]]]()
    below, count = leaves[text], np.ones(len(term), np.int64)
    for level in range(depth, 0, -1):
        below, term, count = add_counts(below, term, count, len(spelled))
        texts_in = np.bincount(leaves >> (depth - level), minlength=2**level)
        weight = log_odds(count, texts_in[below], totals[term], len(leaves))
        for place, chosen in top_terms(below, term, weight, spelled, terms):
            found[2**level - 1 + place] = chosen
        below = below >> 1
    return {name_of(node): found[node] for node in sorted(found)}


def topics_of_training(tree: Tree, pairs: TrainingPairs) -> Terms:
    """Terms of a tree's nodes in the corpus that it was trained on (an even sample of a large one)."""
    if tree.config.propagation == "none":
        return {}  # leaves, but no tree
    pairs = pairs.to(tree.log_multipliers.device)
    corpus = pairs.data.corpus
    chosen = evenly_spaced(len(corpus), SAMPLE)
    size, leaves = PART if pairs.document_tokens is None else PART // 32, []
    with torch.inference_mode():
        for start in range(0, len(chosen), size):
            states = pairs.document_states(chosen[start : start + size])
            leaves.append(greedy_leaf(tree(states).cpu().numpy()))
    texts = [corpus[row].content for row in chosen.tolist()]
    return topics_of_texts(texts, np.concatenate(leaves), tree.config.depth)


# -- one hit ---------------------------------------------------------------------------------------------------


def explain(query: Arrays, arrays: Arrays, level: int, topics: Terms, *, rerank: bool) -> Explanation:
    """Parts of the overlap by the node where they leave the path of the larger shares, from the root down.

    After a rerank the score is the cosine, which the path illustrates but does not make up.
    """
    leaves = np.stack([as_floats(a[LEAVES]).reshape(-1) for a in (query, arrays)])  # [2, C]
    nodes = leaves.reshape(2, 2**level, -1).sum(2, dtype=np.float64).astype(np.float32)
    rows = np.concatenate([nodes, nodes.min(0, keepdims=True)])  # query, document, overlap
    in_query, in_document, shared = node_masses(rows).tolist()
    parts, steps, node = [], [], 0
    for _ in range(level):
        turn, other = (2, 1) if shared[2 * node + 2] > shared[2 * node + 1] else (1, 2)
        off, node = 2 * node + other, 2 * node + turn
        name = name_of(node)
        parts.append(Part(f"subtree {name_of(off)}", shared[off], {"node": name_of(off)}))
        topic = [term for term, _ in topics.get(name, ())]
        steps.append({"node": name, "query": in_query[node], "document": in_document[node], "topic": topic})
    kind, path = "leaf" if 2**level == leaves.shape[1] else "node", name_of(node)
    parts.append(Part(f"{kind} {path}", shared[node], {"node": path}))
    score, end, places = shared[0], steps[-1], _common_nodes(in_query, in_document, topics)
    common = "; and of ".join(
        f"{', '.join(one['topic'][:TERMS])} (node {one['node']} holds {one['query']:.1%} of the question and "
        f"{one['document']:.1%} of the document; an even spread would give {one['even']:.1%})"
        for one in places
    )
    brief = f"both are about {', '.join(places[0]['topic'][:TERMS])}" if places else ""
    about = f"; both speak more than most of {common}" if common else ""
    text = (
        f"overlap {score:.3f}{about}; the larger share of it leads to {end['node']}, which holds {end['query']:.1%} of "
        f"the question and {end['document']:.1%} of the document"
    )
    if rerank:
        vectors = (x[ADAPTED].reshape(1, -1).astype(np.float64) for x in (query, arrays))
        score = float(np.einsum("nd,nd->n", *vectors).astype(np.float32)[0])
        parts = [Part("cosine in the tree's space", score)]
        text = f"cosine {score:.3f}; in the tree: {text}"
    return Explanation(score, parts, text, {"path": path, "nodes": steps, "places": places}, brief=brief)


def _common_nodes(query: Sequence[float], document: Sequence[float], topics: Terms) -> list[dict[str, Any]]:
    """Nodes with a topic that hold more of both texts than their even share 2^−h, most notable first.

    In a gentle tree every turn is nearly even, so that a path says little. The excess is measured in units of the even
    share's root, so that few large nodes and many small ones compete; among nodes under each other one is named.
    """
    found = []
    for node in range(1, len(query)):
        name = name_of(node)
        even = 2.0 ** -len(name)
        excess = (min(query[node], document[node]) - even) / even**0.5
        if name in topics and excess > 0:
            place = {"node": name, "query": query[node], "document": document[node], "even": even}
            found.append((-excess, name, place))
    places: list[dict[str, Any]] = []
    for _, name, place in sorted(found, key=lambda one: one[:2]):
        if not any(name.startswith(other["node"]) or other["node"].startswith(name) for other in places):
            places.append({**place, "topic": [term for term, _ in topics[name]]})
    return places[:PLACES]
