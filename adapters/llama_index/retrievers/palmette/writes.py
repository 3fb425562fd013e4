"""Adding, changing and deleting nodes while the retriever serves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from llama_index.core.ingestion import run_transformations
from llama_index.core.schema import BaseNode, TransformComponent

from llama_index.retrievers.palmette.holding import IndexHolder
from llama_index.retrievers.palmette.nodes import (
    REF_DOC_ID,
    detach,
    mode_of,
    source_hash,
    to_document,
    to_node,
)
from palmette.threads import run_in_thread
from palmette.types import Document

if TYPE_CHECKING:
    from palmette.index import Changes
    from palmette.model import Model

__all__ = ["NodeWrites", "prepare"]


def prepare(
    nodes: Sequence[BaseNode],
    transformations: Sequence[TransformComponent],
    objects: MutableMapping[str, Any],
    model: Model,
) -> list[Document]:
    """What the index stores of nodes or documents, after the transformations."""
    hashes = {node.node_id: node.hash for node in nodes}  # a transformation may change its input
    made = run_transformations(list(nodes), transformations) if transformations else nodes
    mode = mode_of(model)
    return [
        to_document(detach(node, objects), source_hash=hashes.get(node.ref_doc_id or node.node_id), mode=mode)
        for node in made
    ]


class NodeWrites(IndexHolder):
    """The writing half of a retriever, under LlamaIndex's names.

    Nodes are kept as they are; documents go through the retriever's ``transformations`` first. A write is
    whole or not at all, and searches see it when it returns; where nodes of a document are replaced, the old
    ones go as the new ones come. The ``a…`` twins leave the event loop free.
    """

    transformations: list[TransformComponent]
    object_map: dict[str, Any]

    def get_nodes(self, node_ids: Iterable[str]) -> list[BaseNode]:
        """The nodes with these ids, without those that are not there."""
        return [to_node(document) for document in self.index.get(node_ids) if document is not None]

    def add(self, nodes: Sequence[BaseNode]) -> list[str]:
        """Add nodes; the same again changes nothing, another under the same id raises. Returns the ids."""
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

    def delete_nodes(self, node_ids: Iterable[str]) -> list[str]:
        """Delete nodes; ids that are not there are passed over. Returns those deleted."""
        return self.index.delete(node_ids)

    def delete_ref_doc(self, ref_doc_id: str) -> list[str]:
        """Delete all nodes of a document. Returns their ids."""
        return self.index.delete([held.key for held in self._held([ref_doc_id])])

    def update_ref_doc(self, document: BaseNode) -> Changes:
        """Replace all nodes of a document, at once."""
        return self._replace([document])

    def refresh_ref_docs(
        self, documents: Sequence[BaseNode], *, show_progress: bool | None = None
    ) -> list[bool]:
        """Insert new documents, and replace those whose hash has changed. Returns which were written."""
        held: defaultdict[str, set[str | None]] = defaultdict(set)
        for document in self._held([document.node_id for document in documents]):
            held[document.metadata.get(REF_DOC_ID, document.key)].add(source_hash(document))
        stale = [document for document in documents if held[document.node_id] != {document.hash}]
        if stale:
            self._replace(stale, progress=show_progress)
        written = {document.node_id for document in stale}
        return [document.node_id in written for document in documents]

    def _held(self, ref_doc_ids: list[str]) -> list[Document]:
        """The nodes of these documents; what came another way is its own document."""
        others = [held for held in self.index.get(ref_doc_ids) if held and REF_DOC_ID not in held.metadata]
        if not len(self.index.filtered({REF_DOC_ID: {"$exists": True}})):
            return others  # an index refuses to filter by a name that no document has
        return [*self.index.documents({REF_DOC_ID: {"$in": ref_doc_ids}}), *others]

    def _replace(self, documents: Sequence[BaseNode], *, progress: bool | None = None) -> Changes:
        fresh = prepare(documents, self.transformations, self.object_map, self.index.model)
        before = self._held([document.node_id for document in documents])
        return self.index.upsert(fresh, delete=[held.key for held in before], progress=progress)

    async def aget_nodes(self, node_ids: Iterable[str]) -> list[BaseNode]:
        """See :meth:`get_nodes`."""
        return await run_in_thread(self.get_nodes, node_ids)

    async def aadd(self, nodes: Sequence[BaseNode]) -> list[str]:
        """See :meth:`add`."""
        return await run_in_thread(self.add, nodes)

    async def aupsert(self, nodes: Sequence[BaseNode]) -> Changes:
        """See :meth:`upsert`."""
        return await run_in_thread(self.upsert, nodes)

    async def ainsert_nodes(self, nodes: Sequence[BaseNode]) -> Changes:
        """See :meth:`insert_nodes`."""
        return await run_in_thread(self.insert_nodes, nodes)

    async def ainsert(self, document: BaseNode) -> Changes:
        """See :meth:`insert`."""
        return await run_in_thread(self.insert, document)

    async def adelete_nodes(self, node_ids: Iterable[str]) -> list[str]:
        """See :meth:`delete_nodes`."""
        return await run_in_thread(self.delete_nodes, node_ids)

    async def adelete_ref_doc(self, ref_doc_id: str) -> list[str]:
        """See :meth:`delete_ref_doc`."""
        return await run_in_thread(self.delete_ref_doc, ref_doc_id)

    async def aupdate_ref_doc(self, document: BaseNode) -> Changes:
        """See :meth:`update_ref_doc`."""
        return await run_in_thread(self.update_ref_doc, document)

    async def arefresh_ref_docs(
        self, documents: Sequence[BaseNode], *, show_progress: bool | None = None
    ) -> list[bool]:
        """See :meth:`refresh_ref_docs`."""
        return await run_in_thread(self.refresh_ref_docs, documents, show_progress=show_progress)
