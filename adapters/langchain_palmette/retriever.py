"""PalmetteRetriever: retriever and document index of any checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, cast

from langchain_core.callbacks import AsyncCallbackManager, CallbackManager
from langchain_core.documents import Document
from langchain_core.indexing import DeleteResponse, DocumentIndex, UpsertResponse
from langchain_core.retrievers import LangSmithRetrieverParams
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import get_config_list
from pydantic import ConfigDict, Field, JsonValue, PrivateAttr, field_validator

from langchain_palmette.documents import from_hit, from_stored, to_stored
from langchain_palmette.loading import (
    EncoderName,
    Loading,
    ModelName,
    PathName,
    RerankerName,
    find,
    load,
    name_of,
    open_index,
    share,
)
from palmette.config import check_keys, check_kind, without_none
from palmette.errors import ConfigError, InputError
from palmette.index.frameworks import check_method, public_name
from palmette.machine.threads import AsyncTwin
from palmette.ranking.boost import boost_to_dict
from palmette.store.engines import engine_of, is_url
from palmette.store.filters import parse_filter

if TYPE_CHECKING:
    from langchain_core.runnables.utils import AnyConfigurableField

    from palmette import Hit, Index, Model
    from palmette.index.folder import ModelLike
    from palmette.index.results import QueryList

Configs = RunnableConfig | list[RunnableConfig] | None
Found = list[list[Document]]
Result = list[Document] | Exception

CALL = ("k", "filter", "score_threshold", "lexical", "boost", "rerank", "group_by", "distinct", "explain")
"""Options of every call, besides those of the method."""
WRITE = ("progress",)
"""Options of every write."""


class PalmetteRetriever(Loading, DocumentIndex):
    """Retriever of any palmette checkpoint; documents may be added, replaced and deleted while it serves.

    .. code-block:: python

        retriever = PalmetteRetriever.from_documents(documents, model="me/ckpt", index_path="my-index")
        retriever = PalmetteRetriever(index_path="my-index")  # later, elsewhere: opened on first use
        retriever = PalmetteRetriever.from_pretrained("me/ckpt", documents, revision="v1")  # in memory
        retriever.invoke("a question", k=3, filter={"year": {"$gte": 2020}}, explain=True)
        await retriever.abatch(["a question", "another"])  # one encoding pass, one search
        retriever.upsert([Document(id="7", page_content="…")])
        retriever.delete(["7"])

    Results are the documents as they were given, so that those of several queries can be merged by equality;
    :meth:`similarity_search_with_score` returns the scores beside them, and ``score_key="score"`` puts them into the
    metadata. An explanation is in ``metadata["explanation"]``.

    Metadata are kept as JSON: dates become their ``isoformat()``, UUIDs and paths text, NumPy's numbers Python's.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True, arbitrary_types_allowed=True)

    method: ClassVar[str | None] = None
    """The only method whose indexes this class opens."""
    typed_options: ClassVar[tuple[str, ...]] = ()
    """Fields of a subclass that are options of its method's search."""

    index_path: PathName | None = Field(default=None, frozen=True)
    """Folder of the index; an index in memory has a name that begins with ``memory:``."""
    model: ModelName | None = Field(default=None, frozen=True)
    """The index's checkpoint, if not the copy in the index folder."""
    encoder: EncoderName | None = Field(default=None, frozen=True)
    """Opens the index in place of its own encoder: an export of it, or the embeddings that it was made with."""
    engine: str = Field(default="exact", frozen=True, pattern=r"^(exact|faiss|ivf(:.+)?)$")
    """``exact`` kernels, ``faiss`` or ``ivf``, see :meth:`palmette.Index.open`."""
    k: int = Field(default=4, ge=1)
    """Number of documents; all of them when fewer match."""
    filter: dict[str, JsonValue] | None = None
    """Conditions on metadata, applied before ranking. A filter per call narrows them and cannot widen them, so that
    they keep tenants apart.
    """
    score_threshold: float | None = None
    """Leave out documents that score less; the score includes the words that ``lexical`` adds."""
    lexical: Annotated[float, Field(ge=0, le=1)] | Literal["auto"] | None = None
    """Weight of words beside the method: 0 (none) … 1 (words alone), ``"auto"`` for the weight that the checkpoint has
    learned; ``None`` for palmette's default.
    """
    boost: dict[str, JsonValue] | None = None
    """Log-odds by metadata: ``{"date": recency("90d"), "kind": {"guide": 0.5}}``, see :func:`palmette.recency`."""
    rerank: RerankerName | None = Field(default=None, frozen=True)
    """A second stage: ``"cross-encoder:FOLDER"``, ``"rerank:MODEL@https://host/v1"``, a cross-encoder, a compressor of
    LangChain, a function, or a :class:`palmette.ranking.second_stage.Reranker` of them; per call also ``False``.
    """
    group_by: Literal["document"] | None = None
    """``document``: the ``k`` best documents, each by its best passage."""
    distinct: bool | Literal["near"] = False
    """Return passages of the same text once; ``near`` for nearly the same. Citations of the others are in
    ``metadata["copies"]``.
    """
    """Tokens of a widened passage; ``None`` for 1,000."""
    score_key: str | None = None
    """Metadata key of the score, such as ``"score"``; ``None`` leaves it out: a document is equal under all queries."""
    explain: bool = False
    """Explain every result."""
    search_options: dict[str, JsonValue] = Field(default_factory=dict)
    """Options of the checkpoint's method, such as ``{"level": 6}``."""

    _index: Index | None = PrivateAttr(default=None)
    _copies: Index | None = PrivateAttr(default=None)

    @field_validator("filter")
    @classmethod
    def _check_filter(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        parse_filter(value)
        return value

    @field_validator("boost", mode="before")
    @classmethod
    def _check_boost(cls, value: Any) -> dict[str, Any] | None:
        return boost_to_dict(value)

    def model_post_init(self, context: Any, /) -> None:
        """Hold a live index; a URL that holds a key is refused before it is shown, saved or pickled."""
        super().model_post_init(context)
        if is_url(self.index_path):
            engine_of(self.index_path)
        self._index = find(self.index_path)

    # -- making ---------------------------------------------------------------------------------------------

    @classmethod
    def from_documents(
        cls,
        documents: Iterable[Document] | str | Path,
        model: ModelLike | None = None,
        *,
        encoder: Any = None,
        index_path: str | Path | None = None,
        passages: Any = "auto",
        token: str | bool | None = None,
        progress: bool | None = None,
        **fields: Any,
    ) -> Self:
        """Index documents.

        Args:
            documents: Documents of any length to find, or a path to read them from; a missing id is made from the
                content.
            model: A checkpoint, by folder or Hub repository, or a loaded model, which retrievers may share; ``None``
                for the default encoder, with nothing to train (:class:`PalmetteRetriever` only).
            encoder: Instead of a model, what :func:`palmette.load_encoder` takes: a name, LangChain's ``Embeddings``,
                a function.
            index_path: Folder of the index; an existing index is brought up to date with the documents (others
                stay). ``None`` keeps the index in memory, for as long as the retriever.
            passages: How a new index cuts documents: options, or ``None``; see
                :meth:`palmette.Index.create`. Results are passages, with the id and the metadata of their document.
            token: Hub token, where the client's own login is not enough; it is not kept.
            progress: Progress bars; ``None`` shows them on a terminal.
            fields: Fields of the class.
        """
        from palmette import Index

        probe = cls(**fields)
        stored = to_stored(documents)
        options = probe._loading() | ({} if token is None else {"token": token})
        if model is None and cls.method is not None:
            raise ConfigError(f"{cls.__name__} needs a model of method {cls.method!r}: give model=")
        loaded = None if model is None else probe._check_model(load("model", str(name_of(model)), options))
        index_options: dict[str, Any] = {"encoder": encoder, "passages": passages, "engine": probe.engine}
        index = Index.build(stored, loaded, index_path, progress=progress, **index_options)
        retriever = cls.from_index(index, **fields)
        if index_path is not None:
            share(index, *retriever._place())
        return retriever

    @classmethod
    def from_pretrained(
        cls,
        repo: str | Path,
        documents: Iterable[Document] = (),
        *,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
        index_path: str | Path | None = None,
        **fields: Any,
    ) -> Self:
        """Load a checkpoint from the Hub, and index documents (or none yet); see :meth:`from_documents`."""
        fields |= {"revision": revision, "cache_dir": cache_dir, "local_files_only": local_files_only}
        return cls.from_documents(documents, repo, index_path=index_path, token=token, **fields)

    @classmethod
    def from_index(cls, index: str | Path | Index, **fields: Any) -> Self:
        """Retriever of an index: a folder, or an open index."""
        if isinstance(index, str | Path):
            retriever = cls(index_path=index, **fields)
            retriever._index = retriever._open()
            return retriever
        where: dict[str, Any] = {"index_path": index.path, "engine": index.engine}
        if index.path is None or index.within is not None:  # its folder would give nothing, or all documents
            where = {"index_path": name_of(index)}
        retriever = cls(**where | fields)
        retriever._check_model(index.model)
        retriever._index = index
        return retriever

    # -- the index ------------------------------------------------------------------------------------------

    @property
    def index(self) -> Index:
        """The index behind :attr:`filter`; opened on first use, and shared."""
        if self._index is None:
            self._index = self._open()
        return self._index.filtered(self.filter) if self.filter else self._index

    def _open(self) -> Index:
        if self.index_path is None:
            raise ConfigError(
                f"this {type(self).__name__} has no index: give index_path='a-folder', or use from_documents"
            )
        index = open_index(*self._place())
        self._check_model(index.model)
        return index

    def _place(self) -> tuple[str, str | None, str, dict[str, Any]]:
        model = None if self.model is None else str(self.model)
        options = self._loading() | without_none({"encoder": self.encoder})
        return str(self.index_path), model, self.engine, options

    def _check_model(self, model: Model) -> Model:
        """Raise unless this class and its search options are for such a model."""
        check_method(type(self).__name__, self.method, model)
        model.search_options(self._search_options())
        return model

    def _search_options(self) -> dict[str, Any]:
        """Options of the method that are set; ``None`` is the method's own default."""
        typed = {name: getattr(self, name) for name in self.typed_options}
        return without_none({**self.search_options, **without_none(typed)})

    def configurable_fields(self, **kwargs: AnyConfigurableField) -> Any:
        """Make fields configurable; LangChain makes a copy for every call, and all copies share the index."""
        self._copies = self._open()
        return super().configurable_fields(**kwargs)

    # -- writing (a search sees a write whole or not at all) ---------------------------------------------------

    def add_documents(self, documents: Iterable[Document], **kwargs: Any) -> list[str]:
        """Add documents, all or none; an unchanged document is skipped. Returns the ids.

        An id that holds another document raises DuplicateIdError: :meth:`upsert` replaces it. The only option is
        ``progress``.
        """
        check_keys(f"{type(self).__name__}.add_documents", kwargs, WRITE)
        return self.index.add(to_stored(documents), **kwargs)

    def upsert(self, items: Sequence[Document], /, **kwargs: Any) -> UpsertResponse:
        """Add documents, all or none, replacing those whose id exists; unchanged ones cost no encoding."""
        check_keys(f"{type(self).__name__}.upsert", kwargs, WRITE)
        documents = to_stored(items)
        self.index.upsert(documents, **kwargs)
        return UpsertResponse(succeeded=[document.key for document in documents], failed=[])

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> DeleteResponse:
        """Delete by ids, or by ``filter=``; unknown ids are skipped."""
        check_keys(f"{type(self).__name__}.delete", kwargs, ("filter",))
        deleted = self.index.delete(ids, **kwargs)
        return DeleteResponse(num_deleted=len(deleted), succeeded=deleted, num_failed=0, failed=[])

    def get(self, ids: Sequence[str], /, **kwargs: Any) -> list[Document]:
        """Documents by id; unknown ids are skipped."""
        check_keys(f"{type(self).__name__}.get", kwargs, ())
        return [from_stored(document) for document in self.index.get(ids) if document is not None]

    aadd_documents = AsyncTwin(add_documents).method
    aupsert = AsyncTwin(upsert).method
    adelete = AsyncTwin(delete).method
    aget = AsyncTwin(get).method

    # -- many queries in one search ---------------------------------------------------------------------------

    def batch(
        self, inputs: list[str], config: Configs = None, *, return_exceptions: bool = False, **kwargs: Any
    ) -> Found:
        """The results of each query, in one encoding pass and one search.

        Every query has its own run, as with ``invoke``: start, then end or error. An invalid query fails alone.
        ``max_concurrency`` bounds the number of queries per search.
        """
        outcomes: list[Result] = []
        for queries, starts in self._searches(CallbackManager, inputs, config, kwargs):
            runs = list(starts)
            results = self._results(queries, **kwargs)
            for run, result in zip(runs, results, strict=True):
                _end(run, result)
            outcomes += _raise_first(results, return_exceptions)
        return cast("Found", outcomes)

    async def abatch(
        self, inputs: list[str], config: Configs = None, *, return_exceptions: bool = False, **kwargs: Any
    ) -> Found:
        """See :meth:`batch`."""
        outcomes: list[Result] = []
        for queries, starts in self._searches(AsyncCallbackManager, inputs, config, kwargs):
            runs = [await start for start in starts]
            results = await self._aresults(queries, **kwargs)
            for run, result in zip(runs, results, strict=True):
                await _end(run, result)
            outcomes += _raise_first(results, return_exceptions)
        return cast("Found", outcomes)

    def _searches(
        self, manager: Any, inputs: list[str], config: Configs, kwargs: dict[str, Any]
    ) -> Iterator[tuple[list[str], Iterator[Any]]]:
        """Split queries into those of one search; with them their runs, each started when it is taken."""
        check_kind("inputs", inputs, (list, tuple), "a list of queries")
        configs = get_config_list(config, len(inputs)) if inputs else []
        size = (configs[0].get("max_concurrency") if configs else None) or max(1, len(inputs))

        def start_run(query: str, config: RunnableConfig) -> Any:
            """Start a run as ``invoke`` does; an awaitable for an asynchronous manager."""
            callbacks = manager.configure(
                inheritable_callbacks=config.get("callbacks"),
                inheritable_tags=config.get("tags"),
                local_tags=self.tags,
                inheritable_metadata={**(config.get("metadata") or {}), **self._get_ls_params(**kwargs)},
                local_metadata=self.metadata,
            )
            name = config.get("run_name") or self.get_name()
            return callbacks.on_retriever_start(None, query, name=name, run_id=config.get("run_id"))

        for start in range(0, len(inputs), size):
            queries = list(inputs[start : start + size])
            yield queries, map(start_run, queries, configs[start : start + size])

    def _results(self, queries: list[str], **call: Any) -> list[Result]:
        """Results or error of each query, recorded where the index records searches."""
        try:
            results = self._retrieve(queries, **call)
            for query, documents in zip(queries, results, strict=True):
                self.index.record_search(query, [str(document.id) for document in documents])
            return list(results)
        except InputError as error:  # perhaps of one query only
            if len(queries) == 1:
                return [error]
            return [self._results([query], **call)[0] for query in queries]
        except Exception as error:  # raised or returned by the caller
            return [error] * len(queries)

    _aresults = AsyncTwin(_results).method

    # -- searching ------------------------------------------------------------------------------------------

    def _search(self, queries: QueryList, *, explain: bool = False, **call: Any) -> list[list[Hit]]:
        index = self.index
        check_keys(type(self).__name__, call, (*CALL, *index.model.search_class.names()))
        own = {name: getattr(self, name) for name in CALL if name not in ("filter", "explain")}
        call |= {name: value for name, value in own.items() if call.get(name) is None}
        options = without_none({**self._search_options(), **call})
        threshold = options.pop("score_threshold", None)
        if isinstance(options.get("rerank"), str) and options["rerank"] == self.rerank:
            options["rerank"] = self.loaded("rerank")
        return index.search(queries, threshold=threshold, explain=explain, **options)

    def _retrieve(self, queries: list[str], *, explain: bool | None = None, **call: Any) -> Found:
        explain = self.explain if explain is None else explain
        hits_of_queries = self._search(queries, explain=explain, **call)
        return [[from_hit(hit, self.score_key, explain, cite=True) for hit in hits] for hits in hits_of_queries]

    def _get_relevant_documents(self, query: str, *, run_manager: Any, **call: Any) -> list[Document]:
        documents = self._retrieve([query], **call)[0]
        self.index.record_search(query, [str(document.id) for document in documents])
        return documents

    def feedback(self, query: str, id: str, *, useful: bool, person: str | None = None) -> None:
        """Keep whether a document was useful for a query, for :func:`palmette.learning.refit.refit`."""
        self.index.feedback(query, id, useful=useful, person=person)

    afeedback = AsyncTwin(feedback).method

    _aget_relevant_documents = AsyncTwin(_get_relevant_documents).method

    def similarity_search_with_score(
        self, query: str, k: int | None = None, *, explain: bool = False, **call: Any
    ) -> list[tuple[Document, float]]:
        """Documents as they were given, each with its score; options as for ``invoke``."""
        [hits] = self._search([query], k=k, explain=explain, **call)
        return [(from_hit(hit, None, explain), float(hit.score)) for hit in hits]

    asimilarity_search_with_score = AsyncTwin(similarity_search_with_score).method

    # -- LangChain ------------------------------------------------------------------------------------------

    @classmethod
    def is_lc_serializable(cls) -> bool:
        """Fields are JSON, and enough to make the retriever again."""
        return True

    def _get_ls_params(self, **kwargs: Any) -> LangSmithRetrieverParams:
        """Names for traces."""
        model = None if self._index is None else self._index.model
        method = self.method or (model.method if model else None)
        return LangSmithRetrieverParams(
            ls_retriever_name=f"palmette_{method}" if method else "palmette",
            ls_vector_store_provider="palmette",
            ls_embedding_provider="palmette",
            ls_embedding_model=public_name(model.encoder.name) if model else None,
        )


def _end(run: Any, result: Result) -> Any:
    """End a run; an awaitable for an asynchronous one."""
    return (run.on_retriever_error if isinstance(result, Exception) else run.on_retriever_end)(result)


def _raise_first(results: list[Result], return_exceptions: bool) -> list[Result]:
    error = next((result for result in results if isinstance(result, Exception)), None)
    if error is not None and not return_exceptions:
        raise error
    return results
