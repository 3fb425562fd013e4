"""IndexHolder: the index of a retriever, persisted, pickled, opened again, and written to while it serves."""

from __future__ import annotations

import copy
import json
import os
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from llama_index.core.callbacks import CallbackManager
from llama_index.core.ingestion import run_transformations
from llama_index.core.schema import BaseNode, TransformComponent
from llama_index.core.storage.docstore.types import RefDocInfo

from llama_index.retrievers.palmette import nodes as convert
from llama_index.retrievers.palmette.loading import open_index
from llama_index.retrievers.palmette.nodes import REF_DOC_ID, hash_of, to_node
from palmette.config import check_path, parse_json
from palmette.data import drop_blanks
from palmette.errors import ConfigError, InputError, shown
from palmette.machine.threads import AsyncTwin
from palmette.types import Document

if TYPE_CHECKING:
    from palmette import Index, Model
    from palmette.index import Changes
    from palmette.store.filters import Filter

SETTINGS = "llama_index.json"
"""The retriever's settings, in the index folder."""
SHARED = ("_index", "_opening", "callback_manager", "object_map", "transformations", "rerank")
"""Attributes that a deep copy shares."""


def prepare(
    nodes: Sequence[BaseNode] | str | Path, transformations: Any, objects: MutableMapping[str, Any], model: Model
) -> list[Document]:
    """Transform nodes or LlamaIndex documents, and convert those that are not blank."""
    nodes = convert.read_nodes(nodes)
    if not isinstance(transformations, Sequence) or not all(map(callable, transformations)):
        raise InputError(
            f"transformations must be LlamaIndex transformations, such as splitters; got {shown(transformations)}"
        )
    hashes = {node.node_id: hash_of(node) for node in nodes}  # a transformation may change its input
    transformed = run_transformations(list(nodes), transformations) if transformations else nodes
    mode = convert.metadata_mode(model)
    return [
        convert.to_document(
            convert.detach(node, objects), source_hash=hashes.get(node.ref_doc_id or node.node_id), mode=mode
        )
        for node in drop_blanks(transformed, lambda node: convert.text_of(node, mode))
    ]


class IndexHolder:
    """Base of retrievers: holds an index, persists it, pickles its folder, and writes under LlamaIndex's names.

    Nodes are kept as they are; documents go through the retriever's ``transformations`` first. A write happens whole
    or not at all, also one that replaces all nodes of a document. The ``a…`` methods do the same off the event loop.
    """

    transformations: list[TransformComponent]
    object_map: dict[str, Any]
    _index: Index | None
    _opening: threading.Lock
    _path: Path | str | None
    _engine: str
    _within: Filter | None

    def _hold(self, index: Index) -> None:
        self._index, self._opening = index, threading.Lock()

    @property
    def index(self) -> Index:
        """The index behind the retriever; after unpickling it is opened on first use."""
        if self._index is None:
            with self._opening:
                if self._index is None:
                    assert self._path is not None
                    self._index = open_index(self._path, engine=self._engine).filtered(self._within)
        return self._index

    def _filtered(self) -> Index:
        """The index behind the filters that limit reading."""
        return self.index

    def settings(self) -> Mapping[str, Any]:
        """Constructor options to keep with the index."""
        return {}

    def persist(self, path: str | Path | None = None) -> Path:
        """Write the retriever to a folder that :meth:`from_persist_dir` opens.

        In the index's own folder, and without a ``path``, only the settings are written. With another path the index
        is copied into that new folder; nothing is encoded again. Objects that index nodes refer to, callbacks,
        transformations and rerankers without a name are not kept: give them again.
        """
        place = self.index.path
        here = place if isinstance(place, Path) else None  # a collection keeps no settings
        target = here if path is None else check_path(path)
        if target is None:
            raise InputError("this index is in memory, or a collection: name the folder, retriever.persist(path)")
        if here is None or target.resolve() != here.resolve():
            self.index.copy_to(target).close()
        elif self.index.within is not None:
            raise InputError(f"this retriever sees a part of the index in {here}: persist that part in another folder")
        draft = target / f"{SETTINGS}.{os.getpid()}-{threading.get_ident()}.tmp"
        draft.write_text(json.dumps(self.settings(), indent=2) + "\n", encoding="utf-8")
        draft.replace(target / SETTINGS)
        return target

    @classmethod
    def from_persist_dir(
        cls, path: str | Path, *, model: Model | None = None, encoder: Any = None, engine: str = "exact", **options: Any
    ) -> Self:
        """Open a folder of :meth:`persist`, as :meth:`from_index` does; options given here replace stored ones."""
        index = open_index(path, model, engine, encoder)
        file = check_path(path) / SETTINGS
        stored = parse_json(file.read_text(encoding="utf-8")) if file.is_file() else {}
        return cls.from_index(index, **{**stored, **options})

    @classmethod
    def from_index(
        cls,
        index: Index | str | Path,
        *,
        model: Model | None = None,
        encoder: Any = None,
        engine: str = "exact",
        **options: Any,
    ) -> Self:
        """Retriever of an index: a folder, opened with that engine (and that model, if loaded), or an open index.

        ``encoder`` opens a folder in place of its own encoder: an export of it, or the ``BaseEmbedding`` that it was
        made with.
        Over ``index.filtered(filter)`` it finds, adds and deletes only nodes that pass the filter.
        """
        make: Any = cls
        retriever: Self = make(open_index(index, model, engine, encoder), **options)
        return retriever

    def __copy__(self) -> Self:
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copy the settings; copies share the index, and the objects that run."""
        twin = copy.copy(self)
        own = {name: value for name, value in self.__dict__.items() if name not in SHARED}
        twin.__dict__.update(copy.deepcopy(own, memo), object_map=dict(self.__dict__["object_map"]))
        return twin

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        index = state.pop("_index")
        if index is not None:
            state.update(_path=index.path, _engine=index.engine, _within=index.within)
        if state["_path"] is None:
            raise ConfigError(
                f"a {type(self).__name__} whose index is in memory cannot be pickled: make it with "
                "index_path=, to have it opened where it is unpickled"
            )
        del state["_opening"], state["callback_manager"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__dict__.update(_index=None, _opening=threading.Lock(), callback_manager=CallbackManager())

    # -- writing -------------------------------------------------------------------------------------------

    def get_nodes(self, node_ids: Iterable[str]) -> list[BaseNode]:
        """Nodes by id; unknown ids, and nodes that the retriever's filters hide, are skipped."""
        return [to_node(document) for document in self._filtered().get(node_ids) if document is not None]

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
        return self.index.delete([node.key for node in self._stored([ref_doc_id])])

    def update_ref_doc(self, document: BaseNode) -> Changes:
        """Replace all nodes of a document in one write."""
        return self._replace([document])

    @property
    def ref_doc_info(self) -> dict[str, RefDocInfo]:
        """Node ids of every document that passes the retriever's filters, with the metadata of its first node."""
        infos: dict[str, RefDocInfo] = {}
        for node in self._filtered().documents():
            metadata = {name: value for name, value in node.metadata.items() if name != REF_DOC_ID}
            source = node.metadata.get(REF_DOC_ID, node.key)
            infos.setdefault(source, RefDocInfo(metadata=metadata)).node_ids.append(node.key)
        return infos

    def refresh_ref_docs(self, documents: Sequence[BaseNode], *, show_progress: bool | None = None) -> list[bool]:
        """Insert new documents, and replace those whose hash has changed. Returns, for each, whether it was written."""
        stored_hashes: defaultdict[str, set[str | None]] = defaultdict(set)
        for node in self._stored([document.node_id for document in documents]):
            stored_hashes[node.metadata.get(REF_DOC_ID, node.key)].add(convert.source_hash(node))
        stale = [document for document in documents if stored_hashes[document.node_id] != {hash_of(document)}]
        if stale:
            self._replace(stale, progress=show_progress)
        written = {document.node_id for document in stale}
        return [document.node_id in written for document in documents]

    def _stored(self, ref_doc_ids: list[str]) -> list[Document]:
        """Stored nodes of these documents; a document added without LlamaIndex is its own source."""
        others = [node for node in self.index.get(ref_doc_ids) if node and REF_DOC_ID not in node.metadata]
        if not len(self.index.filtered({REF_DOC_ID: {"$exists": True}})):
            return others  # an index refuses to filter by a name that no document has
        return [*self.index.documents({REF_DOC_ID: {"$in": ref_doc_ids}}), *others]

    def _replace(self, documents: Sequence[BaseNode], *, progress: bool | None = None) -> Changes:
        fresh = prepare(documents, self.transformations, self.object_map, self.index.model)
        before = self._stored([document.node_id for document in documents])
        return self.index.upsert(fresh, delete=[node.key for node in before], progress=progress)

    aget_nodes = AsyncTwin(get_nodes).method
    aadd = AsyncTwin(add).method
    aupsert = AsyncTwin(upsert).method
    ainsert_nodes = AsyncTwin(insert_nodes).method
    ainsert = AsyncTwin(insert).method
    adelete_nodes = AsyncTwin(delete_nodes).method
    adelete_ref_doc = AsyncTwin(delete_ref_doc).method
    aupdate_ref_doc = AsyncTwin(update_ref_doc).method
    arefresh_ref_docs = AsyncTwin(refresh_ref_docs).method
