"""PalmetteRetriever: any palmette model as a LlamaIndex retriever, trained or not."""

from __future__ import annotations

import copy
import json
import os
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, cast

import numpy as np
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks import CallbackManager, CBEventType, EventPayload
from llama_index.core.chat_engine.types import BaseChatEngine, ChatMode
from llama_index.core.constants import DEFAULT_SIMILARITY_TOP_K
from llama_index.core.ingestion import run_transformations
from llama_index.core.instrumentation.events.retrieval import RetrievalEndEvent, RetrievalStartEvent
from llama_index.core.schema import BaseNode, IndexNode, NodeWithScore, QueryBundle, QueryType, TransformComponent
from llama_index.core.storage.docstore.types import RefDocInfo
from llama_index_instrumentation import get_dispatcher
from numpy.typing import NDArray

from llama_index.retrievers.palmette.loading import ModelLike, load_model
from llama_index.retrievers.palmette.nodes import (
    PASSAGE,
    PAYLOAD,
    REF_DOC_ID,
    hash_of,
    metadata_mode,
    read_nodes,
    scored,
    text_of,
    to_document,
    to_node,
)
from llama_index.retrievers.palmette.query import Filters, PalmetteQuery, palmette_filter
from palmette.config import check_keys, check_kind, check_path, parse_json, without_none
from palmette.data import drop_blanks
from palmette.errors import ConfigError, InputError, shown
from palmette.index.frameworks import as_vector, check_method
from palmette.machine.threads import AsyncTwin
from palmette.ranking.boost import boost_to_dict
from palmette.ranking.second_stage import as_reranker
from palmette.types import Document

if TYPE_CHECKING:
    from llama_index.core.llms import LLM
    from llama_index.core.query_engine import RetrieverQueryEngine

    from palmette import Explanation, Hit, Index, Model
    from palmette.index import Changes
    from palmette.store.filters import Filter

Vector = NDArray[np.floating[Any]]
Query = str | tuple[str, ...] | Vector
Call = tuple[Query, dict[str, Any]]

RESULT_SETTINGS = ("group_by", "distinct")
"""Settings of a search that say which passages are returned."""
CALL_SETTINGS = ("k", "threshold", "explain", *RESULT_SETTINGS)
"""Settings of a search, besides those that determine a score."""
SETTINGS = "llama_index.json"
"""The retriever's settings, in the index folder."""
COPIED_BY_REFERENCE = ("_index", "_opening", "callback_manager", "object_map", "transformations", "rerank")
"""Attributes that a deep copy shares."""

dispatcher = get_dispatcher(__name__)


def prepare(
    nodes: Sequence[BaseNode] | str | Path, transformations: Any, objects: MutableMapping[str, Any], model: Model
) -> list[Document]:
    """Transform nodes or LlamaIndex documents, and convert those that are not blank."""
    nodes = read_nodes(nodes)
    if not isinstance(transformations, Sequence) or not all(map(callable, transformations)):
        raise InputError(
            f"transformations must be LlamaIndex transformations, such as splitters; got {shown(transformations)}"
        )
    hashes = {node.node_id: hash_of(node) for node in nodes}  # a transformation may change its input
    transformed = run_transformations(list(nodes), transformations) if transformations else nodes
    mode, documents = metadata_mode(model), list[Document]()
    for node in drop_blanks(transformed, lambda node: text_of(node, mode)):
        if isinstance(node, IndexNode) and node.obj is not None and not isinstance(node.obj, BaseNode):
            objects[node.index_id] = node.obj  # no node, which could be stored
            node = node.model_copy(update={"obj": None})
        documents.append(to_document(node, source_hash=hashes.get(node.ref_doc_id or node.node_id), mode=mode))
    return documents


class PalmetteRetriever(BaseRetriever):
    """Retriever of any palmette model; nodes may be added, replaced and deleted while it serves.

    Nodes are kept as they are; documents go through the retriever's ``transformations`` first. A write happens whole
    or not at all, also one that replaces all nodes of a document. The ``a…`` methods do the same off the event loop.

        retriever = PalmetteRetriever.from_documents(documents, model="me/ckpt", similarity_top_k=5)
        retriever.retrieve("a question")
        retriever.retrieve(PalmetteQuery("a question", top_k=3, filters={"lang": "en"}))

    Attributes below may be changed at any time.

    Args:
        index: The index to search; retrievers over one index, or one model, share its memory.
        similarity_top_k: Number of nodes.
        filters: LlamaIndex's MetadataFilters or palmette's mapping, applied before ranking. A query can only
            narrow them. They limit all reading, :meth:`get_nodes` and :attr:`ref_doc_info` included, but not writing:
            to keep tenants apart use ``from_index(index.filtered(…))``.
        score_threshold: Leave out nodes that score less; the score includes the words that ``lexical`` adds.
        lexical: Weight of words beside the method: 0 (none) … 1 (words alone), ``"auto"`` for the weight that the
            checkpoint has learned; ``None`` for palmette's default. An embedding is searched without words.
        boost: Log-odds by metadata: ``{"date": recency("90d"), "kind": {"guide": 0.5}}``, see :func:`palmette.recency`.
        rerank: A second stage: ``"cross-encoder:FOLDER"``, ``"rerank:MODEL@https://host/v1"``, a cross-encoder, a node
            postprocessor that reranks, a function, or a :class:`palmette.ranking.second_stage.Reranker` of them;
            ``False`` for none.
        group_by: ``"document"`` for the best documents, each by its best passage.
        distinct: Return passages of the same text once; ``"near"`` for nearly the same.
        explain: Return :class:`ExplainedNode`, with the explanation of its score.
        transformations: Transformations of documents (not nodes) before they are indexed, such as a splitter.
        callback_manager: LlamaIndex's callbacks; not pickled.
        object_map: Objects that index nodes refer to, by index id.
        objects: The same objects as index nodes.
        verbose: Print the objects that index nodes lead to.
        search_options: Options of the model's method, such as ``level=6`` for a tree.

    Metadata are kept as JSON: dates become their ``isoformat()``, UUIDs and paths text, NumPy's numbers Python's.
    """

    method: ClassVar[str | None] = None
    """The only method whose models this class takes."""
    _index: Index | None
    _path: Path | str | None  # of an unpickled retriever whose index is not open yet, as the next two
    _engine: str
    _within: Filter | None

    def __init__(
        self,
        index: Index,
        *,
        similarity_top_k: int = DEFAULT_SIMILARITY_TOP_K,
        filters: Filters = None,
        score_threshold: float | None = None,
        lexical: float | Literal["auto"] | None = None,
        boost: Mapping[str, Any] | None = None,
        rerank: Any = None,
        group_by: Literal["document"] | None = None,
        distinct: bool | Literal["near"] = False,
        explain: bool = False,
        transformations: Sequence[TransformComponent] | None = None,
        callback_manager: CallbackManager | None = None,
        object_map: dict[str, Any] | None = None,
        objects: list[IndexNode] | None = None,
        verbose: bool = False,
        **search_options: Any,
    ) -> None:
        super().__init__(callback_manager, object_map, objects, verbose)
        self._check(index.model, search_options)
        self._index, self._opening = index, threading.Lock()
        self.similarity_top_k, self.score_threshold = similarity_top_k, score_threshold
        self.filters, self.lexical, self.explain_results = filters, lexical, explain
        self.boost = boost_to_dict(boost)
        self.rerank = rerank if rerank is None or rerank is False else as_reranker(rerank)
        self.group_by, self.distinct = group_by, distinct
        self.transformations = list(transformations or ())
        self.search_options = search_options

    @property
    def index(self) -> Index:
        """The index behind the retriever; after unpickling it is opened on first use."""
        if self._index is None:
            from palmette.index import Index

            with self._opening:
                if self._index is None:
                    assert self._path is not None
                    self._index = Index.open(self._path, engine=self._engine).filtered(self._within)
        return self._index

    # -- making ---------------------------------------------------------------------------------------------

    @classmethod
    def from_documents(
        cls,
        documents: Sequence[BaseNode] | str | Path,
        model: ModelLike | None = None,
        *,
        encoder: Any = None,
        index_path: str | Path | None = None,
        passages: Any = "auto",
        engine: str = "exact",
        show_progress: bool | None = None,
        **options: Any,
    ) -> Self:
        """Index documents or nodes.

        Args:
            documents: Documents or nodes of any length, perhaps none; or a path to read them from.
            model: A loaded model (shared, not copied), a checkpoint folder or a Hub repository; ``None`` for the
                default encoder, with nothing to train (:class:`PalmetteRetriever` only).
            encoder: Instead of a model, what :func:`palmette.load_encoder` takes: a name, a ``BaseEmbedding``, a
                function.
            index_path: Folder of the index; an existing index is brought up to date with the documents (others
                stay). ``None`` for memory.
            passages: How a new index cuts nodes: options, or ``None``; see
                :meth:`palmette.Index.create`. Results are passages, whose ids end in ``#1``, ``#2``, …
            engine: ``exact`` kernels, ``faiss`` or ``ivf``, see :meth:`palmette.Index.open`.
            show_progress: Progress bar; ``None`` shows it on a terminal.
            options: Options of the class.
        """
        from palmette.index import Index
        from palmette.index.folder import index_exists

        model = load_model(model, encoder)
        cls._check(model, options)
        documents, transformations = read_nodes(documents), options.get("transformations") or ()
        if transformations and index_path is not None and index_exists(index_path):
            # transformations make nodes with new ids: only documents that have changed go through them
            retriever = cls(Index.build([], model, index_path, passages=passages, engine=engine), **options)
            retriever.refresh_ref_docs(documents, show_progress=show_progress)
            return retriever
        objects: dict[str, Any] = {}
        prepared = prepare(documents, transformations, objects, model)
        index = Index.build(prepared, model, index_path, passages=passages, engine=engine, progress=show_progress)
        retriever = cls(index, **options)
        retriever.object_map = {**objects, **retriever.object_map}
        return retriever

    @classmethod
    def from_pretrained(
        cls,
        repo_or_dir: str | Path,
        documents: Sequence[BaseNode] = (),
        *,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
        model_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Self:
        """Load a checkpoint from a folder or the Hub, and index documents (or none yet).

        ``model_options`` are more of :func:`palmette.load_model`, such as ``device``, ``dtype``, ``batch_size``;
        ``options`` those of :meth:`from_documents`.
        """
        place: dict[str, Any] = {"revision": revision, "token": token, "cache_dir": cache_dir}
        more = {"local_files_only": local_files_only, **(model_options or {})}
        return cls.from_documents(documents, load_model(repo_or_dir, **place, **more), **options)

    @classmethod
    def _check(cls, model: Model, options: Mapping[str, Any]) -> None:
        """Raise for a model of another method, or an unknown option."""
        check_method(cls.__name__, cls.method, model)
        own = PalmetteRetriever.__init__.__kwdefaults__ or {}
        check_keys(cls.__name__, options, [*own, *model.search_class.names()])
        model.search_options(without_none({name: options[name] for name in options if name not in own}))

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
        if isinstance(index, str | Path):
            from palmette.index import Index

            own = {} if encoder is None else {"encoder": encoder}
            index = Index.open(index, model, engine=engine, **own)
        return cls(index, **options)

    @classmethod
    def from_persist_dir(cls, path: str | Path, **options: Any) -> Self:
        """Open a folder of :meth:`persist`, as :meth:`from_index` does; options given here replace stored ones."""
        file = check_path(path) / SETTINGS
        stored = parse_json(file.read_text(encoding="utf-8")) if file.is_file() else {}
        return cls.from_index(path, **{**stored, **options})

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

    def __copy__(self) -> Self:
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copy the settings; copies share the index, and the objects that run."""
        twin = copy.copy(self)
        own = {name: value for name, value in self.__dict__.items() if name not in COPIED_BY_REFERENCE}
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

    # -- retrieving -----------------------------------------------------------------------------------------

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self._search([query_bundle])[0]

    _aretrieve = AsyncTwin(_retrieve).method

    @dispatcher.span
    def retrieve_batch(self, queries: Sequence[QueryType]) -> list[list[NodeWithScore]]:
        """Retrieve for many queries in one pass, with the events and callbacks of as many single calls."""
        check_kind("queries", queries, (list, tuple), "a list of queries")
        bundles = [_bundle(query) for query in queries]
        with self.callback_manager.as_trace("query"), ExitStack() as stack:
            events = []
            for bundle in bundles:
                dispatcher.event(RetrievalStartEvent(str_or_query_bundle=bundle))
                payload: dict[str, Any] = {EventPayload.QUERY_STR: bundle.query_str}
                event = self.callback_manager.event(CBEventType.RETRIEVE, payload=payload)
                events.append(stack.enter_context(event))
            nodes_of_queries = self._search(bundles)
            results = [self._handle_recursive_retrieval(*pair) for pair in zip(bundles, nodes_of_queries, strict=True)]
            for started, nodes in zip(events, results, strict=True):
                started.on_end(payload={EventPayload.NODES: nodes})
        for bundle, nodes in zip(bundles, results, strict=True):
            dispatcher.event(RetrievalEndEvent(str_or_query_bundle=bundle, nodes=nodes))
        return results

    aretrieve_batch = AsyncTwin(retrieve_batch).method

    def explain(self, query: QueryType, node_id: str) -> Explanation:
        """Explain a node's score for a query, whether or not a search would return it.

        Of a passage, ``a#2``, its node is explained, by the best of its passages.
        """
        index_query, settings = self._call(_bundle(query))
        node_id = self._document_id(node_id)
        options = {name: value for name, value in settings.items() if name not in CALL_SETTINGS}
        return self._filtered().explain(index_query, node_id, **options)

    def _document_id(self, node_id: str) -> str:
        """Return the id of a node, or of the node that a passage is of."""
        return node_id if node_id in self._filtered() else PASSAGE.sub("", node_id)

    def _search(self, bundles: Sequence[QueryBundle]) -> list[list[NodeWithScore]]:
        calls = [self._call(bundle) for bundle in bundles]
        results = list(zip(calls, self._hits(calls), strict=True))
        for (query, _), hits in results:
            if isinstance(query, str):
                self._filtered().record_search(query, [hit.id for hit in hits])
        return [[scored(hit, explain=settings["explain"]) for hit in hits] for (_, settings), hits in results]

    def feedback(self, query: str, node_id: str, *, useful: bool, person: str | None = None) -> None:
        """Keep whether a node was useful for a query; what is said of a passage, ``a#2``, counts for its node."""
        self._filtered().feedback(query, self._document_id(node_id), useful=useful, person=person)

    afeedback = AsyncTwin(feedback).method

    def _hits(self, calls: Sequence[Call]) -> list[list[Hit]]:
        """Search for all queries, those of equal settings in one pass."""
        groups: dict[str, list[int]] = {}
        for row, (query, settings) in enumerate(calls):
            groups.setdefault(_key(row, query, settings), []).append(row)
        index = self._filtered()
        results: list[list[Hit]] = [[]] * len(calls)
        for rows in groups.values():
            queries, settings = [calls[row][0] for row in rows], calls[rows[0]][1]
            vectors = isinstance(queries[0], np.ndarray)
            batch: Any = np.stack(cast("list[Vector]", queries)) if vectors else queries
            for row, hits in zip(rows, index.search(batch, **settings), strict=True):
                results[row] = hits
        return results

    def _filtered(self) -> Index:
        return self.index.filtered(palmette_filter(self.filters))

    def _call(self, bundle: QueryBundle) -> Call:
        """Query and settings of one search: the retriever's own, replaced by those of a PalmetteQuery."""
        own = bundle if isinstance(bundle, PalmetteQuery) else PalmetteQuery(bundle.query_str)
        query = self._query(bundle)
        lexical: Any = self.lexical if own.lexical is None else own.lexical
        rerank = self.rerank
        if not isinstance(query, str):  # embeddings, and means of several texts, are searched without words
            lexical, rerank = 0, False
        settings = {
            "k": self.similarity_top_k if own.top_k is None else own.top_k,
            "filter": palmette_filter(own.filters),
            "threshold": self.score_threshold if own.score_threshold is None else own.score_threshold,
            "explain": self.explain_results if own.explain is None else own.explain,
            **without_none(
                {
                    "boost": self.boost,
                    "rerank": rerank,
                    **{name: getattr(self, name) for name in RESULT_SETTINGS},
                    **self.search_options,
                    **own.options,
                    "lexical": lexical,  # last: options say nothing else for an embedding
                }
            ),
        }
        return query, settings

    def _query(self, bundle: QueryBundle) -> Query:
        """Embedding of the bundle, else its text; of several texts (HyDE) the mean embedding, as in LlamaIndex.

        A model that reads more of a query than its embedding takes the mean of its query arrays of all texts.
        """
        if bundle.embedding is not None:
            return as_vector(bundle.embedding)
        check_kind("query_str", bundle.query_str, str, "a str")
        texts = bundle.embedding_strs
        check_kind("custom_embedding_strs", texts, list, "a list of str")
        if len(texts) > 1 and not self.index.model.accepts_embeddings:
            return tuple(texts)
        if len(texts) > 1:
            mean: Vector = self.index.model.encoder.plain.encode_queries(texts).mean(axis=0)
            return mean
        return texts[0] if texts else bundle.query_str

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

    insert_nodes = upsert  # LlamaIndex's name

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
            stored_hashes[node.metadata.get(REF_DOC_ID, node.key)].add(node.payload.get(PAYLOAD, {}).get("hash"))
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
    ainsert_nodes = aupsert
    ainsert = AsyncTwin(insert).method
    adelete_nodes = AsyncTwin(delete_nodes).method
    adelete_ref_doc = AsyncTwin(delete_ref_doc).method
    aupdate_ref_doc = AsyncTwin(update_ref_doc).method
    arefresh_ref_docs = AsyncTwin(refresh_ref_docs).method

    # -- engines --------------------------------------------------------------------------------------------

    def as_query_engine(self, llm: LLM | None = None, **options: Any) -> RetrieverQueryEngine:
        """Query engine over this retriever; an LLM is looked for unless ``response_synthesizer`` is given."""
        from llama_index.core.llms import MockLLM
        from llama_index.core.query_engine import RetrieverQueryEngine

        if llm is None and options.get("response_synthesizer") is not None:
            llm = MockLLM()
        return RetrieverQueryEngine.from_args(self, llm=llm, **options)

    def as_chat_engine(
        self, chat_mode: ChatMode = ChatMode.BEST, llm: LLM | None = None, **options: Any
    ) -> BaseChatEngine:
        """Chat engine over this retriever: ``condense_plus_context`` (the best), ``context``, ``condense_question``."""
        from llama_index.core import chat_engine as engines

        mode, own = ChatMode(chat_mode), {"llm": llm, **options}
        if mode in (ChatMode.BEST, ChatMode.CONDENSE_PLUS_CONTEXT):
            return engines.CondensePlusContextChatEngine.from_defaults(self, **own)
        if mode is ChatMode.CONTEXT:
            return engines.ContextChatEngine.from_defaults(self, **own)
        if mode is ChatMode.CONDENSE_QUESTION:
            return engines.CondenseQuestionChatEngine.from_defaults(self.as_query_engine(llm), **own)
        raise ConfigError(
            f"a retriever has no chat mode {str(chat_mode)!r}: use condense_plus_context, context or condense_question"
        )

    def settings(self) -> dict[str, Any]:
        """Constructor options that :meth:`persist` keeps with the index."""
        return {
            "similarity_top_k": self.similarity_top_k,
            "filters": palmette_filter(self.filters),
            "score_threshold": self.score_threshold,
            "lexical": self.lexical,
            "boost": self.boost,
            "rerank": self.rerank.to_dict() if self.rerank else self.rerank,
            **{name: getattr(self, name) for name in RESULT_SETTINGS},
            "explain": self.explain_results,
            **without_none(self.search_options),
        }


def _bundle(query: object) -> QueryBundle:
    if isinstance(query, str):
        return QueryBundle(query)
    check_kind("a query", query, QueryBundle, "a str or a QueryBundle")
    return cast("QueryBundle", query)


def _key(row: int, query: Query, settings: dict[str, Any]) -> str:
    """Key of the searches that one pass can answer."""
    try:
        return repr((type(query), np.shape(query) if isinstance(query, np.ndarray) else (), settings))
    except Exception:  # what cannot be written cannot be compared: the search refuses it
        return str(row)
