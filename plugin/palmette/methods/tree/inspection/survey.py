"""How an inspection is made: one pass over an index's arrays, one over its texts, some documents at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray
from tqdm.auto import tqdm

from palmette.errors import ConfigError, InputError
from palmette.methods.tree.branches import Branches
from palmette.methods.tree.inspection.congruence import of_nodes, of_texts
from palmette.methods.tree.inspection.inspection import Balance, Found, Listed, Route, TreeNode
from palmette.methods.tree.search import LEAVES, VECTORS, reached
from palmette.methods.tree.shape import Shape, name_of
from palmette.methods.tree.topics import topics

if TYPE_CHECKING:
    from palmette.methods.tree.module import Tree
    from palmette.model import Model
    from palmette.store.backend import Backend, View
    from palmette.types import Document, Hit

__all__ = ["Indexed", "survey"]

Ints = NDArray[np.int64]
CHUNK = 1024
READ = 100_000
"""Texts whose words are read for topics; a larger collection is sampled evenly."""
COMPARED = 1500
"""Texts whose vectors are compared, each with each."""
SHOWN = 200
"""Characters of a listed document."""
FOUND = 5
"""Documents that are shown for a query."""
FAINT = 5e-4
"""A query's share of a node that is not shown."""


class Indexed(Protocol):
    """An :class:`palmette.Index`."""

    model: Model
    backend: Backend

    def search(self, query: Sequence[str], k: int, *, lexical: float) -> list[list[Hit]]:
        """The best documents of every query."""
        ...


def survey(index: Indexed, *, listed: int, terms: int, progress: bool | None) -> dict[str, Any]:
    """The fields of a :class:`TreeInspection`."""
    model = index.model
    if model.method != "tree":
        raise ConfigError(f"only a tree can be inspected so; this index is of method {model.method!r}")
    module = cast("Tree", model.module)
    if module.config.propagation == "none":
        raise ConfigError("a model with propagation='none' has leaves but no tree to inspect")
    shape = module.config.shape
    branches = Branches([name_of(node) for node in shape.levels[-1].tolist()])
    with index.backend.read() as view:
        if not len(view):
            raise InputError("this index holds no documents to inspect the tree with: add some first")
        keys = view.keys()
        hidden = None if progress is None else not progress
        sampled = _spread(len(keys), READ)
        total = len(keys) + len(sampled)
        with tqdm(total=total, desc="Inspecting", unit="document", delay=2, disable=hidden) as bar:
            seen = _Seen(view, keys, shape, branches, bar)
            texts = _texts(view, keys[sampled], bar)
            found = topics(texts, seen.leaves[sampled], branches, terms=terms)
        counts = branches.counted(seen.leaves)
        compared = _spread(len(keys), COMPARED)
        vectors = np.asarray(view.array(VECTORS, keys[compared].tolist()), np.float32)
        chosen = _listed(view, keys, seen, branches, listed)
    splits = [name_of(node) for node in shape.splits.tolist()]
    normals = _node_vectors(module)
    return {
        "documents": len(keys),
        "leaves": tuple(branches.names[place] for place in branches.leaves),
        "nodes": tuple(
            TreeNode(
                name,
                share=float(seen.share[place]),
                documents=int(counts[place]),
                decided=None if branches.left[place] < 0 else float(seen.decided[place]),
                words=tuple(found.get(name, ())),
            )
            for place, name in enumerate(branches.names)
        ),
        "balance": _balance(seen, branches, counts),
        "node_congruence": None if normals is None else of_nodes(normals, splits),
        "text_congruence": of_texts(vectors, seen.leaves[compared], branches),
        "listed": chosen,
        "router": partial(routes, index, shape, branches),
    }


class _Seen:
    """What the pass over the arrays gathers (n documents, N nodes, D levels).

    Attributes:
        leaves: [n] place of the leaf each document falls into.
        reached: [n, D] its probability at each node on the way there.
        share: [N] mean probability of each node.
        decided: [N] mean share of the likelier turn.
        spread: Mean effective leaves per document.
    """

    def __init__(self, view: View, keys: Ints, shape: Shape, branches: Branches, bar: Any) -> None:
        ways = branches.ways()
        self.leaves = np.empty(len(keys), np.int64)
        self.reached = np.empty((len(keys), ways.shape[1] - 1), np.float32)
        self.share, likelier = np.zeros(len(branches)), np.zeros(len(branches))
        split = np.flatnonzero(branches.left >= 0)
        self.spread = 0.0
        for start in range(0, len(keys), CHUNK):
            part = slice(start, start + CHUNK)
            rows = _probabilities(view.array(LEAVES, keys[part].tolist()))
            masses = branches.masses(rows)  # [n, N]
            here = branches.leaves[reached(rows, shape)[:, 0]]
            way = ways[here][:, 1:]  # [n, D]
            self.leaves[part] = here
            self.reached[part] = np.where(way >= 0, np.take_along_axis(masses, way.clip(0), axis=1), 0)
            self.share += masses.sum(0)
            likelier[split] += np.maximum(
                masses[:, branches.left[split]], masses[:, branches.right[split]]
            ).sum(0)
            self.spread += float(np.exp(-(rows * np.log(rows + 1e-12)).sum(1)).sum())
            bar.update(len(rows))
        self.decided = likelier / np.maximum(self.share, 1e-12)
        self.share /= len(keys)
        self.spread /= len(keys)


def _probabilities(stored: NDArray[np.generic]) -> NDArray[np.float32]:
    """Rows that sum to 1, however they are stored."""
    rows = stored.astype(np.float32)
    whole: NDArray[np.float32] = rows / np.maximum(rows.sum(axis=1, keepdims=True), 1e-12)
    return whole


def _spread(n: int, most: int) -> Ints:
    """At most so many of n places, evenly."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).astype(np.int64))


def _texts(view: View, keys: Ints, bar: Any) -> Iterator[str]:
    for start in range(0, len(keys), CHUNK):
        documents = view.documents(keys[start : start + CHUNK].tolist())
        yield from (document.content for document in documents)
        bar.update(len(documents))


def _listed(view: View, keys: Ints, seen: _Seen, branches: Branches, most: int) -> tuple[Listed, ...]:
    """Documents to show: the most probable of every leaf, then the second of every leaf, and so on."""
    last = seen.reached[
        np.arange(len(keys)), branches.level[seen.leaves] - 1
    ]  # [n] probability of the own leaf
    order = np.lexsort((-last, seen.leaves))
    starts = np.flatnonzero(np.diff(seen.leaves[order], prepend=-1))
    rank = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
    picked = order[np.argsort(rank, kind="stable")[:most]]
    picked = picked[np.lexsort((-last[picked], seen.leaves[picked]))]
    documents = view.documents(keys[picked].tolist())
    return tuple(
        Listed(
            document.key,
            *_shown(document),
            branches.names[seen.leaves[at]],
            tuple(round(float(p), 4) for p in seen.reached[at][: branches.level[seen.leaves[at]]]),
        )
        for at, document in zip(picked.tolist(), documents, strict=True)
    )


def _shown(document: Document) -> tuple[str, str]:
    """Its title, where it has one, and how its text begins."""
    title = document.metadata.get("title") or document.fields.get("title")
    title = _short(title) if isinstance(title, str) else ""
    text = document.content[: 8 * SHOWN].lstrip()
    return title, _short(text.removeprefix(title).lstrip() or text)


def _short(text: str) -> str:
    text = " ".join(text[: 4 * SHOWN].split())
    return text if len(text) <= SHOWN else text[: SHOWN - 1].rstrip() + "…"


def _balance(seen: _Seen, branches: Branches, counts: Ints) -> Balance:
    share = np.sort(seen.share[branches.leaves])  # [C], rising
    entropy = -float((share * np.log(share + 1e-300)).sum())
    rank = np.arange(1, len(share) + 1)
    gini = float((2 * rank - len(share) - 1) @ share / (len(share) * share.sum()))
    return Balance(math.exp(entropy), gini, int((counts[branches.leaves] == 0).sum()), seen.spread)


def _node_vectors(module: Tree) -> NDArray[np.float32] | None:
    """What each split node asks of a text: its embedding, or its hyperplane's normal."""
    for part, name in ((module.beyond, "embeddings"), (module.linear, "directions"), (module.beyond, "out")):
        weights = getattr(part, name, None)
        if weights is not None:
            vectors: NDArray[np.float32] = weights.detach().float().cpu().numpy()
            return vectors.reshape(len(vectors), -1)
    return None


def routes(index: Indexed, shape: Shape, branches: Branches, queries: Sequence[str]) -> tuple[Route, ...]:
    """The ways of some queries, and where the documents lie that they find."""
    results = index.search(queries, k=FOUND, lexical=0)
    asked = _probabilities(index.model.encode_queries(list(queries), index.model.options({}))[LEAVES])
    made = []
    with index.backend.read() as view:
        for query, hits, row in zip(queries, results, asked, strict=True):
            known = [(hit, key) for hit in hits if (key := view.key_of(hit.id)) is not None]
            rows = np.stack([row, *_probabilities(view.array(LEAVES, [key for _, key in known]))])
            ends = [branches.names[place] for place in branches.leaves[reached(rows, shape)[:, 0]]]
            found = [
                Found(hit.id, *_shown(hit.document), leaf, hit.score)
                for (hit, _), leaf in zip(known, ends[1:], strict=True)
            ]
            made.append(Route(query, ends[0], _shares(branches.masses(row[None])[0], branches), tuple(found)))
    return tuple(made)


def _shares(mass: NDArray[np.float64], branches: Branches) -> Mapping[str, float]:
    return {
        branches.names[place]: round(float(mass[place]), 4)
        for place in np.flatnonzero(mass >= FAINT).tolist()
    }
