"""What a tree has made of a collection: its nodes, their topics and documents, and how well it is balanced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from palmette.config import check_range
from palmette.errors import InputError, NotFoundError
from palmette.methods.tree.inspection.congruence import Congruence

if TYPE_CHECKING:
    from palmette.methods.tree.inspection.survey import Indexed

__all__ = ["Balance", "Found", "Listed", "Route", "TreeInspection", "TreeNode"]


@dataclass(frozen=True)
class TreeNode:
    """A node, and the documents that fall into it: those that take the likelier turn at every split.

    Attributes:
        name: The turns that lead to it, ``LRL``; empty for the root.
        share: Mean probability of reaching it; times the documents, how many it expects.
        documents: How many fall into it.
        decided: How clearly it splits: the mean share of the likelier turn, .5 … 1; ``None`` for a leaf.
        words: Its terms against the rest of the tree, with their weights (see :mod:`~palmette.methods.tree.topics`).
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
class Listed:
    """A document that is shown: its leaf, and its probability at each node on the way there, from level 1."""

    id: str
    title: str
    text: str
    leaf: str
    reached: tuple[float, ...]


@dataclass(frozen=True)
class Found:
    """A document that a query finds, and the leaf it falls into."""

    id: str
    title: str
    text: str
    leaf: str
    score: float


@dataclass(frozen=True)
class Route:
    """Where a query goes.

    Attributes:
        query: The query.
        path: The likelier turn at every split.
        reached: Node → its probability, where the query has a share in it.
        found: The documents that a search of the tree alone (``lexical=0``) finds, best first.
    """

    query: str
    path: str
    reached: Mapping[str, float]
    found: tuple[Found, ...] = ()


@dataclass(frozen=True)
class Balance:
    """How evenly the documents lie on the leaves.

    Attributes:
        effective_leaves: exp of the entropy of the leaves' mean probabilities: as many equal leaves would be as even.
        gini: 0 when all leaves hold the same share, towards 1 when one holds all.
        empty_leaves: Leaves that no document falls into.
        leaves_per_document: Mean over documents of exp of the entropy of its own probabilities: 1 is sharp.
    """

    effective_leaves: float
    gini: float
    empty_leaves: int
    leaves_per_document: float


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
        documents: How many the index holds.
        leaves: Names of the leaves, left to right.
        nodes: All nodes, a parent before its children, left before right.
        balance: Of the leaves.
        node_congruence: Cosine of split nodes by their distance; ``None`` for a tree whose nodes have no vectors.
        text_congruence: Cosine of documents by the level of their lowest common ancestor.
        listed: Documents to show, in each leaf the most probable first.
        routes: Of the queries asked for.
    """

    documents: int
    leaves: tuple[str, ...]
    nodes: tuple[TreeNode, ...]
    balance: Balance
    node_congruence: Congruence | None
    text_congruence: Congruence
    listed: tuple[Listed, ...]
    routes: tuple[Route, ...] = ()
    router: Callable[[Sequence[str]], tuple[Route, ...]] | None = field(
        default=None, repr=False, compare=False
    )

    @classmethod
    def of(
        cls,
        index: Indexed,
        *,
        queries: Sequence[str] = (),
        listed: int = 4000,
        terms: int = 8,
        progress: bool | None = None,
    ) -> Self:
        """Look through an index of a :class:`~palmette.TreeModel`.

        Args:
            index: The index.
            queries: Texts whose ways are shown.
            listed: How many documents to keep for showing, spread over the leaves.
            terms: How many words and word pairs per node.
            progress: A progress bar; ``None`` shows it on a terminal.
        """
        from palmette.methods.tree.inspection.survey import survey

        check_range("TreeInspection", "listed", listed, 0, whole=True)
        check_range("TreeInspection", "terms", terms, 0, whole=True)
        made = cls(**survey(index, listed=listed, terms=terms, progress=progress))
        return made.show(queries) if queries else made

    def node(self, name: str) -> TreeNode:
        """A node by its turns from the root."""
        found = next((node for node in self.nodes if node.name == name), None)
        if found is None:
            raise NotFoundError(
                f"this tree has no node {name!r}; nodes are named by their turns, such as 'LRL'"
            )
        return found

    def examples(self, name: str, k: int = 5) -> list[Listed]:
        """The most probable documents that fall into a node, of those that are listed."""
        check_range("examples", "k", k, 0, whole=True)
        level = self.node(name).level
        inside = [document for document in self.listed if document.leaf.startswith(name)]
        return sorted(inside, key=lambda d: -d.reached[level - 1] if level else -d.reached[-1])[:k]

    def show(self, queries: Sequence[str] | str) -> Self:
        """The same with other queries' ways through the tree; a notebook draws what this returns."""
        if self.router is None:
            raise InputError("this inspection has lost its model (it was copied or pickled): make it anew")
        asked: Any = queries  # the index refuses what is no query
        several = isinstance(asked, Sequence) and not isinstance(asked, str)
        return replace(self, routes=self.router(list(asked) if several else [asked]))

    def rows(self) -> Iterator[dict[str, Any]]:
        """A flat row per node, for a table."""
        for node in self.nodes:
            terms = ", ".join(term for term, _ in node.words)
            yield {
                **asdict(node),
                "level": node.level,
                "expected": node.share * self.documents,
                "words": terms,
            }

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        facts = asdict(replace(self, router=None))
        del facts["router"]
        return facts

    def to_html(self) -> str:
        """A page that needs nothing but itself."""
        from palmette.methods.tree.inspection.page import page

        return page(self)

    def save_html(self, path: str | Path) -> Path:
        """Write :meth:`to_html` to a file."""
        path = Path(path).expanduser()
        try:
            path.write_text(self.to_html(), encoding="utf-8")
        except OSError as error:
            raise InputError(f"{path} cannot be written ({error.strerror}); choose another file") from error
        return path

    def _repr_html_(self) -> str:
        from palmette.methods.tree.inspection.page import frame

        return frame(self)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "router": None}
