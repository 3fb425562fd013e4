"""A tree over the documents of an index, as data and as one HTML page (section 5 of the paper)."""

from __future__ import annotations

import hashlib
import json
import math
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import Rows, evenly_spaced, unit_rows
from palmette.config import check_range
from palmette.errors import ConfigError, InputError, NotFoundError
from palmette.machine.progress import progress_bar
from palmette.machine.text import shorten
from palmette.methods.tree.explain import node_masses, topics_of_texts
from palmette.methods.tree.leaves import ADAPTED, LEAVES, greedy_leaf, name_of_leaf
from palmette.store.protocols import View, by_documents
from palmette.types import Document, Hit

DOCUMENTS_AT_ONCE = 1024
"""Documents read at a time."""
DOCUMENTS_READ = 100_000
"""Documents sampled for topics."""
DOCUMENTS_COMPARED = 1500
"""Documents sampled for pairwise cosines."""
SHOWN_CHARACTERS = 200
"""Characters of a document on the page."""
FOUND = 5
"""Hits per query."""
FRAMED = 600
"""Documents in a notebook's cell."""
FAINT = 5e-4
"""Probability under which the page leaves out a node of a query."""


@dataclass(frozen=True)
class TreeNode:
    """A node, and the documents under it: those that take the likelier turn at every split.

    Attributes:
        name: Turns from the root, ``LRL``; empty for the root.
        share: Mean probability of reaching it.
        documents: Number of documents under it.
        decided: Mean share of the likelier turn, .5 … 1: how clearly it splits; ``None`` for a leaf.
        words: Its terms against the rest of the tree, with their weights.
    """

    name: str
    share: float
    documents: int
    decided: float | None
    words: tuple[tuple[str, float], ...]

    @property
    def level(self) -> int:
        """Turns from the root."""
        return len(self.name)


@dataclass(frozen=True)
class TreeDocument:
    """A document on the page, its leaf, and its score: that of a search, or the probability of the leaf."""

    id: str
    title: str
    text: str
    leaf: str
    score: float


@dataclass(frozen=True)
class Route:
    """Way of a query through the tree.

    Attributes:
        query: The query.
        path: Likelier turn at every split.
        reached: Node → probability, without those near 0.
        found: Best documents of a search of the tree alone (``lexical=0``).
    """

    query: str
    path: str
    reached: Mapping[str, float]
    found: tuple[TreeDocument, ...]


@dataclass(frozen=True)
class Balance:
    """Distribution of the documents over the leaves.

    Attributes:
        effective_leaves: exp of the entropy of the leaves' mean probabilities: so many equal leaves would be as even.
        gini: 0 when all leaves hold the same share, towards 1 when one holds all.
        empty_leaves: Leaves without a document.
        leaves_per_document: Mean over documents of exp of the entropy of its own probabilities; 1 is sharp.
    """

    effective_leaves: float
    gini: float
    empty_leaves: int
    leaves_per_document: float


@dataclass(frozen=True)
class Congruence:
    """Cosine of two documents by the level of their lowest common ancestor (figure 4 of the paper).

    Attributes:
        steps: Level, mean cosine and number of pairs.
        average: Mean cosine of all pairs.
    """

    steps: tuple[tuple[int, float, int], ...]
    average: float


@dataclass(frozen=True)
class TreeInspection:
    """A tree over an index, as data, as a page, and in a notebook's cell.

    Examples:
        >>> from palmette import FakeEncoder, Index, TreeModel
        >>> texts = [f"the {animal} number {i}" for i in range(9) for animal in ("cat", "dog")]
        >>> model = TreeModel.fit(texts, encoder=FakeEncoder(32), depth=3, steps=2, batch_size=8)
        >>> inspection = TreeInspection.of(Index.build(texts, model), queries=["cat 4"])
        >>> inspection.node("").documents
        18
        >>> inspection.to_html().startswith("<!doctype html>")
        True

    Attributes:
        documents: Documents in the index.
        leaves: Names of the leaves, left to right.
        nodes: All nodes, level by level, left before right.
        balance: Load of the leaves.
        congruence: Cosine of documents by the level of their lowest common ancestor.
        listed: Documents on the page, by leaf, the most probable first.
        routes: Ways of the given queries.
    """

    documents: int
    leaves: tuple[str, ...]
    nodes: tuple[TreeNode, ...]
    balance: Balance
    congruence: Congruence
    listed: tuple[TreeDocument, ...]
    routes: tuple[Route, ...] = ()

    @classmethod
    def of(
        cls,
        index: Any,
        *,
        queries: Sequence[str] = (),
        listed: int = 4000,
        terms: int = 8,
        progress: bool | None = None,
    ) -> Self:
        """Survey the :class:`palmette.Index` of a :class:`~palmette.TreeModel`.

        Args:
            index: The index.
            queries: Texts whose ways are shown.
            listed: Documents on the page, spread over the leaves.
            terms: Words and word pairs per node.
            progress: A progress bar; ``None`` shows it on a terminal.
        """
        check_range("TreeInspection", "listed", listed, 0, whole=True)
        check_range("TreeInspection", "terms", terms, 0, whole=True)
        if index.model.method != "tree":
            raise ConfigError(f"only a tree can be inspected; this index is of method {index.model.method!r}")
        config = index.model.config
        depth, queries = config.depth, [queries] if isinstance(queries, str) else list(queries)
        results = index.search(queries, k=FOUND, lexical=0) if queries else []
        names = [name_of_leaf(node) for node in range(2 ** (depth + 1) - 1)]
        with index.backend.read() as view:
            keys = view.keys()
            if not len(keys):
                raise InputError("this index holds no documents to inspect the tree with: add some first")
            leaf, probability, share, decided, spread = _survey(view, keys, depth, progress)
            sampled, compared = (evenly_spaced(len(keys), most) for most in (DOCUMENTS_READ, DOCUMENTS_COMPARED))
            read = (document.content for part in by_documents(view, keys[sampled]) for document in view.documents(part))
            topics = topics_of_texts(read, leaf[sampled], depth, terms=terms)
            vectors = view.rows(ADAPTED, keys[compared].tolist()).astype(np.float32)
            picked = _picked(leaf, probability, listed)
            documents = view.documents(keys[picked].tolist())
            by_leaves = index.model.search_options({"level": depth})
            encoded = index.model.encode_queries(queries, by_leaves)[LEAVES] if queries else []
            routes = [_route(view, *each, names) for each in zip(queries, results, encoded, strict=True)]
        per_leaf = np.bincount(leaf, minlength=2**depth)
        counts, leaves = node_masses(per_leaf[None])[0], names[2**depth - 1 :]
        shown = zip(documents, leaf[picked].tolist(), probability[picked].tolist(), strict=True)
        decisions = [*decided.tolist(), *[None] * len(leaves)]
        columns = zip(names, share.tolist(), counts.astype(int).tolist(), decisions, strict=True)
        return cls(
            documents=len(keys),
            leaves=tuple(leaves),
            nodes=tuple(TreeNode(*column, tuple(topics.get(column[0], ()))) for column in columns),
            balance=_balance(share[2**depth - 1 :], per_leaf, spread),
            congruence=measure_congruence(vectors, leaf[compared], depth),
            listed=tuple(_document(document, leaves[at], score) for document, at, score in shown),
            routes=tuple(routes),
        )

    def node(self, name: str) -> TreeNode:
        """Node by its turns from the root."""
        match = next((node for node in self.nodes if node.name == name), None)
        if match is None:
            raise NotFoundError(f"this tree has no node {name!r}; nodes are named by their turns, such as 'LRL'")
        return match

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return asdict(self)

    def to_html(self, *, most: int | None = None) -> str:
        """Self-contained page, with ``most`` documents at most: data, style and script inside, nothing fetched.

        Documents are untrusted. They enter the page as JSON in an inert ``<script type="application/json">`` without
        a ``<``, and the script puts them into text nodes, never into markup. The content security policy names the
        hashes of the one style and the one script, so that nothing else can run or load.
        """
        template, hashes = _template(), page_hashes()
        data = self.to_dict()
        data["listed"] = data["listed"][:: 1 if most is None else max(1, -(-len(self.listed) // most))]
        inert = json.dumps(data, separators=(",", ":"), allow_nan=False)
        for mark in "&<>":
            inert = inert.replace(mark, f"\\u{ord(mark):04x}")
        values = {
            "policy": f"default-src 'none'; style-src 'sha256-{hashes['style']}'; "
            f"script-src 'sha256-{hashes['script']}'; base-uri 'none'; form-action 'none'; connect-src 'none'",
            "title": f"Tree of {self.documents:,} documents",
            "data": inert,
        }
        return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], template)

    def save_html(self, path: str | Path) -> Path:
        """Write :meth:`to_html` to a file."""
        path = Path(path).expanduser()
        try:
            path.write_text(self.to_html(), encoding="utf-8")
        except OSError as error:
            raise InputError(f"{path} cannot be written ({error.strerror}); choose another file") from error
        return path

    def _repr_html_(self) -> str:
        """The page in a frame of its own, so that two cells of a notebook do not interfere."""
        inner = escape(self.to_html(most=FRAMED), quote=True)
        return (
            f'<iframe srcdoc="{inner}" sandbox="allow-scripts" title="Tree" '
            'style="width:100%;height:640px;border:1px solid #8884;border-radius:8px"></iframe>'
        )


def _template() -> str:
    return (files("palmette.methods.tree") / "page.html").read_text(encoding="utf-8")


@cache
def page_hashes() -> dict[str, str]:
    """SHA-256 of the page's one style and one script, for a content security policy."""
    inner = {tag: re.findall(f"<{tag}>(.*?)</{tag}>", _template(), re.S)[0] for tag in ("style", "script")}
    return {tag: b64encode(hashlib.sha256(text.encode()).digest()).decode() for tag, text in inner.items()}


# -- the data -------------------------------------------------------------------------------------------------


def _survey(
    view: View, keys: Rows, depth: int, progress: bool | None
) -> tuple[Rows, NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], float]:
    """Leaf of each document and its probability [n], mean probability and decidedness of nodes, leaves per document."""
    leaf, probability = np.empty(len(keys), np.int64), np.empty(len(keys))
    share, likelier, spread = np.zeros(2 ** (depth + 1) - 1), np.zeros(2**depth - 1), 0.0
    with progress_bar(progress, total=len(keys), desc="Inspecting", unit="document", delay=2) as bar:
        for start in range(0, len(keys), DOCUMENTS_AT_ONCE):
            rows = _distributions(view.rows(LEAVES, keys[start : start + DOCUMENTS_AT_ONCE].tolist()))
            masses, part = node_masses(rows), slice(start, start + len(rows))
            leaf[part] = greedy_leaf(rows)
            probability[part] = rows[np.arange(len(rows)), leaf[part]]
            share += masses.sum(0)
            likelier += np.maximum(masses[:, 1::2], masses[:, 2::2]).sum(0)
            spread += float(np.exp(-(rows * np.log(rows + 1e-12)).sum(1)).sum())
            bar.update(len(rows))
    decided = likelier / np.maximum(share[: len(likelier)], 1e-12)
    return leaf, probability, share / len(keys), decided, spread / len(keys)


def _distributions(stored: NDArray[Any]) -> NDArray[np.float32]:
    """Rows that sum to 1, from fixed point or floats."""
    rows: NDArray[np.float32] = stored.astype(np.float32)
    rows /= np.maximum(rows.sum(axis=1, keepdims=True), 1e-12)
    return rows


def _picked(leaf: Rows, probability: NDArray[np.float64], most: int) -> Rows:
    """Documents to list: the most probable of every leaf, then the second of every leaf, and so on; by leaf."""
    order = np.lexsort((-probability, leaf))
    starts = np.flatnonzero(np.diff(leaf[order], prepend=-1))
    rank = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
    return order[np.sort(np.argsort(rank, kind="stable")[:most])]


def _document(document: Document, leaf: str, score: float) -> TreeDocument:
    title = document.metadata.get("title") or document.fields.get("title")
    title = shorten(title, SHOWN_CHARACTERS) if isinstance(title, str) else ""
    text = document.content[: 8 * SHOWN_CHARACTERS].lstrip()
    text = shorten(text.removeprefix(title).lstrip() or text, SHOWN_CHARACTERS)
    return TreeDocument(document.key, title, text, leaf, round(score, 4))


def _route(view: View, query: str, hits: Sequence[Hit], encoded: NDArray[np.float32], names: list[str]) -> Route:
    """Way of a query, and the leaves of the documents that it finds."""
    keys = view.keys_of([hit.id for hit in hits])
    known = [(hit, keys[hit.id][hit.passage.number if hit.passage else 0]) for hit in hits if hit.id in keys]
    row, stored = encoded[None], view.rows(LEAVES, [key for _, key in known])
    ends = greedy_leaf(np.concatenate([_distributions(row), _distributions(stored)])) + len(names) // 2
    at = zip(known, ends[1:].tolist(), strict=True)
    documents = [_document(hit.document, names[node], hit.score) for (hit, _), node in at]
    reached = zip(names, node_masses(_distributions(row))[0].tolist(), strict=True)
    shares = {name: round(mass, 4) for name, mass in reached if mass >= FAINT}
    return Route(query, names[ends[0]], shares, tuple(documents))


def _balance(share: NDArray[np.float64], per_leaf: Rows, spread: float) -> Balance:
    share = np.sort(share)  # [C], rising
    entropy = -float((share * np.log(share + 1e-300)).sum())
    rank = np.arange(1, len(share) + 1)
    gini = float((2 * rank - len(share) - 1) @ share / (len(share) * share.sum()))
    return Balance(math.exp(entropy), gini, int((per_leaf == 0).sum()), spread)


def measure_congruence(vectors: NDArray[np.float32], leaves: Rows, depth: int) -> Congruence:
    """Mean cosines of all pairs of [n, d] vectors; leaves that part after h turns differ in their last D − h bits."""
    unit = unit_rows(vectors)
    pairs = np.triu_indices(len(unit), 1)
    cosine = (unit @ unit.T)[pairs].astype(np.float64)
    level = depth - np.frexp((leaves[:, None] ^ leaves)[pairs])[1]
    totals, counts = np.bincount(level, cosine, depth + 1), np.bincount(level, minlength=depth + 1)
    steps = tuple((h, float(totals[h] / counts[h]), int(counts[h])) for h in np.flatnonzero(counts).tolist())
    return Congruence(steps, float(cosine.mean()) if len(cosine) else 1.0)
