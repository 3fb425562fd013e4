"""The nodes that a model knows by row: ids, names, contents, and how they hang together."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from palmette.errors import CheckpointError, NotFoundError
from palmette.hub import Checkpoint
from palmette.methods.taxonomy.hierarchy import Hierarchy, name_of
from palmette.types import Document

__all__ = ["Nodes"]

Rows = NDArray[np.int64]
FILE = "nodes.json"


@dataclass(frozen=True)
class Nodes:
    """What a model keeps of the documents it was trained on.

    Attributes:
        ids: By row.
        names: By row.
        digests: Of their contents: a document whose text has changed is no longer the node.
        hierarchy: Which lies above which, where that is known.
        generality: [N] where there is no hierarchy: how often each is the answer (its log frequency).
    """

    ids: Sequence[str]
    names: Sequence[str]
    digests: Sequence[str]
    hierarchy: Hierarchy | None
    generality: NDArray[np.float32]

    @classmethod
    def of(
        cls, documents: Sequence[Document], hierarchy: Hierarchy | None, generality: NDArray[np.float32]
    ) -> Self:
        """Of a corpus."""
        names = [name_of(document) for document in documents]
        return cls([d.key for d in documents], names, [_digest(d) for d in documents], hierarchy, generality)

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def rows(self) -> dict[str, int]:
        """Id → row."""
        return {id: row for row, id in enumerate(self.ids)}

    @cached_property
    def _contents(self) -> dict[str, int]:
        """Digest → row, the first where several nodes have one text."""
        return {digest: row for row, digest in reversed(list(enumerate(self.digests)))}

    @cached_property
    def _named(self) -> dict[str, int]:
        """Name → row, without regard to case; the first where several nodes have one name."""
        return {name.casefold(): row for row, name in reversed(list(enumerate(self.names)))}

    def by_id(self, documents: Sequence[Document]) -> Rows:
        """[B] rows of documents by their ids; −1 where there is no such node."""
        return np.array([self.rows.get(d.key, -1) for d in documents], np.int64)

    def by_content(self, documents: Sequence[Document]) -> Rows:
        """[B] rows of documents by what they say: equal texts are one, whatever their ids."""
        return np.array([self._contents.get(_digest(d), -1) for d in documents], np.int64)

    def named(self, text: str) -> int:
        """The row of the node with this id or name."""
        row = self.rows.get(text, self._named.get(text.strip().casefold()))
        if row is None:
            raise NotFoundError(
                f"no node is called {text!r:.80}: a model with queries='lookup' knows its {len(self)} nodes by id "
                f"or name, such as {self.names[0]!r}; train one with queries='text' to ask anything"
            )
        return row

    @cached_property
    def specificity(self) -> NDArray[np.float32]:
        """[N] higher is more specific: depth in the hierarchy, or how seldom a node is an answer."""
        if self.hierarchy is not None:
            return self.hierarchy.depths.astype(np.float32)
        return -self.generality

    def to_files(self) -> dict[str, bytes]:
        """As a checkpoint keeps it."""
        facts: dict[str, Any] = {"ids": self.ids, "names": self.names, "digests": self.digests}
        if self.hierarchy is None:
            facts["generality"] = [round(float(value), 4) for value in self.generality]
        else:
            facts["parents"] = self.hierarchy.parents.values.tolist()
            facts["counts"] = np.diff(self.hierarchy.parents.starts).tolist()
        return {FILE: json.dumps(facts, ensure_ascii=False, separators=(",", ":")).encode()}

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> Self:
        """Read back what :meth:`to_files` wrote."""
        facts = json.loads(checkpoint.file(FILE))
        try:
            ids, names = facts["ids"], facts["names"]
            hierarchy = None
            if "parents" in facts:
                children = np.repeat(np.arange(len(ids)), facts["counts"])
                hierarchy = Hierarchy.of(ids, children, np.array(facts["parents"], np.int64), names)
            generality = np.array(facts.get("generality", []), np.float32)
            return cls(ids, names, facts["digests"], hierarchy, generality)
        except KeyError as error:
            raise CheckpointError(
                f"{checkpoint.path}: {FILE} lacks {error}; save the checkpoint again"
            ) from error


def _digest(document: Document) -> str:
    return hashlib.sha256(document.content.encode("utf-8", "surrogatepass")).hexdigest()[:16]
