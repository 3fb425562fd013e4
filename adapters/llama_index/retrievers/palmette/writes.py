"""NodeWrites: nodes added, replaced and deleted while a retriever serves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from llama_index.core.ingestion import run_transformations
from llama_index.core.schema import BaseNode, TransformComponent
from llama_index.core.storage.docstore.types import RefDocInfo

from llama_index.retrievers.palmette.holding import IndexHolder
from llama_index.retrievers.palmette.nodes import (
    REF_DOC_ID,
    detach,
    hash_of,
    metadata_mode,
    source_hash,
    to_document,
    to_node,
)
from palmette.data import drop_blanks
from palmette.errors import InputError, shown
from palmette.threads import AsyncTwin
from palmette.types import Document

if TYPE_CHECKING:
    from palmette.index import Changes
    from palmette.model import Model


def prepare(
    nodes: Sequence[BaseNode],
    transformations: Sequence[TransformComponent],
    objects: MutableMapping[str, Any],
    model: Model,
) -> list[Document]:
    """Transform nodes or LlamaIndex documents, and convert those that are not blank."""
    if not all(map(callable, transformations)):
        raise InputError(
            f"transformations must be LlamaIndex transformations, such as splitters; got {shown(transformations)}"
        )
    hashes = {node.node_id: hash_of(node) for node in nodes}  # a transformation may change its input
    made = run_transformations(list(nodes), transformations) if transformations else nodes
    mode = metadata_mode(model)
    return [
        to_document(detach(node, objects), source_hash=hashes.get(node.ref_doc_id or node.node_id), mode=mode)
        for node in drop_blanks(made, lambda node: node.get_content(mode))
    ]


class NodeWrites(IndexHolder):
    """The writing half of a retriever, under LlamaIndex's names.

    Nodes are kept as they are; documents go through the retriever's ``transformations`` first. A write happens whole
    or not at all, also one that replaces all nodes of a document. The ``a…`` methods do the same off the event loop.
    """

    transformations: list[TransformComponent]
    object_map: dict[str, Any]

    def get_nodes(self, node_ids: Iterable[str]) -> list[BaseNode]:
        """Nodes by id; unknown ids are skipped."""
        return [to_node(document) for document in self.index.get(node_ids) if document is not None]

    def add(self, nodes: Sequence[BaseNode]) -> list[str]:
        """Add nodes; an unchanged node is skipped, another node under its id raises. Returns the ids."""
        return self.index.add(prepare(nodes, (), self.object_map, self.index.model))

    def upsert(self, nodes: Sequence[BaseNode]) -> Changes:
        """Add nodes, replacing those whose id exists; unchanged ones are not encoded again."""
        return self.index.upsert(prepare(nodes, (), self.object_map, self.index.model))

    def insert_nodes(self, nodes: Sequence[BaseNode]) -> Changes:
        """LlamaIndex's name of :meth:`upsert`."""
        return self.upsert(nodes)

    def insert(self, document: BaseNode) -> Changes:
        """Transform a document and add its nodes."""
        return self.index.upsert(prepare([document], self.transformations, self.object_map, self.index.model))

    def delete_nodes(self, node_ids: Iterable[str], delete_from_docstore: bool = True) -> list[str]:
        """Delete nodes; unknown ids are skipped. Returns the ids deleted. Index and docstore are one."""
        return self.index.delete(node_ids)

    def delete_ref_doc(self, ref_doc_id: str, delete_from_docstore: bool = True) -> list[str]:
        """Delete all nodes of a document. Returns their ids. Index and docstore are one."""
        return self.index.delete([held.key for held in self._stored([ref_doc_id])])

    def update_ref_doc(self, document: BaseNode) -> Changes:
        """Replace all nodes of a document in one write."""
        return self._replace([document])

    @property
    def ref_doc_info(self) -> dict[str, RefDocInfo]:
        """Node ids of every document, with the metadata of its first node."""
        found: dict[str, RefDocInfo] = {}
        for held in self.index.documents():
            own = {name: value for name, value in held.metadata.items() if name != REF_DOC_ID}
            source = held.metadata.get(REF_DOC_ID, held.key)
            found.setdefault(source, RefDocInfo(metadata=own)).node_ids.append(held.key)
        return found

    def refresh_ref_docs(
        self, documents: Sequence[BaseNode], *, show_progress: bool | None = None
    ) -> list[bool]:
        """Insert new documents, and replace those whose hash has changed. Returns, for each, whether it was written."""
        held: defaultdict[str, set[str | None]] = defaultdict(set)
        for document in self._stored([document.node_id for document in documents]):
            held[document.metadata.get(REF_DOC_ID, document.key)].add(source_hash(document))
        stale = [document for document in documents if held[document.node_id] != {hash_of(document)}]
        if stale:
            self._replace(stale, progress=show_progress)
        written = {document.node_id for document in stale}
        return [document.node_id in written for document in documents]

    def _stored(self, ref_doc_ids: list[str]) -> list[Document]:
        """Stored nodes of these documents; a document added without LlamaIndex is its own source."""
        others = [held for held in self.index.get(ref_doc_ids) if held and REF_DOC_ID not in held.metadata]
        if not len(self.index.filtered({REF_DOC_ID: {"$exists": True}})):
            return others  # an index refuses to filter by a name that no document has
        return [*self.index.documents({REF_DOC_ID: {"$in": ref_doc_ids}}), *others]

    def _replace(self, documents: Sequence[BaseNode], *, progress: bool | None = None) -> Changes:
        fresh = prepare(documents, self.transformations, self.object_map, self.index.model)
        before = self._stored([document.node_id for document in documents])
        return self.index.upsert(fresh, delete=[held.key for held in before], progress=progress)

    aget_nodes = AsyncTwin(get_nodes).method
    aadd = AsyncTwin(add).method
    aupsert = AsyncTwin(upsert).method
    ainsert_nodes = AsyncTwin(insert_nodes).method
    ainsert = AsyncTwin(insert).method
    adelete_nodes = AsyncTwin(delete_nodes).method
    adelete_ref_doc = AsyncTwin(delete_ref_doc).method
    aupdate_ref_doc = AsyncTwin(update_ref_doc).method
    arefresh_ref_docs = AsyncTwin(refresh_ref_docs).method
