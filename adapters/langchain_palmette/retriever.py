"""The retriever of any checkpoint, which is its document index too."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import LangSmithRetrieverParams
from pydantic import ConfigDict, Field, JsonValue, PrivateAttr, field_validator

from langchain_palmette.batching import Batching
from langchain_palmette.documents import from_hit
from langchain_palmette.fields import Loading, ModelName, PathName
from langchain_palmette.live import Place, find, name_of, open_index, open_model, publish
from langchain_palmette.writing import Writing
from palmette.config import check_keys, given
from palmette.errors import ConfigError
from palmette.store.filters import parse_filter
from palmette.threads import run_in_thread

if TYPE_CHECKING:
    from langchain_core.runnables.utils import AnyConfigurableField

    from palmette.index import Index
    from palmette.model import Model
    from palmette.types import Hit

__all__ = ["PalmetteRetriever"]

CALL = ("k", "filter", "score_threshold", "lexical", "explain")


class PalmetteRetriever(Batching, Writing, Loading):
    """Retriever of any palmette checkpoint, with documents added, replaced and deleted while it serves.

    Setup:
        .. code-block:: bash

            pip install 'palmette[langchain]'

    Instantiate:
        .. code-block:: python

            from langchain_palmette import PalmetteRetriever

            retriever = PalmetteRetriever.from_documents(documents, model="me/ckpt", index_path="my-index")
            retriever = PalmetteRetriever(index_path="my-index")  # later, elsewhere: opened when first used
            retriever = PalmetteRetriever.from_pretrained("me/ckpt", documents, revision="v1")  # in memory

    Usage:
        .. code-block:: python

            retriever.invoke("a question")
            retriever.invoke("a question", k=3, filter={"year": {"$gte": 2020}}, explain=True)
            await retriever.abatch(["a question", "another"])  # one encoding pass, one search
            retriever.upsert([Document(id="7", page_content="…")])
            retriever.delete(["7"])

    Use within a chain:
        .. code-block:: python

            from langchain_core.tools import create_retriever_tool
            from langchain.agents import create_agent

            search = create_retriever_tool(retriever, "search", "Search the handbook.")
            create_agent("openai:gpt-5", [search]).invoke({"messages": [("user", "a question")]})

    A document's score is in ``metadata["score"]``, what explains it in ``metadata["explanation"]``; where a
    document has such a key itself, :meth:`get` still shows it. Metadata are JSON values: write dates as their
    ``isoformat()``.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True, arbitrary_types_allowed=True)

    method: ClassVar[str | None] = None
    """The only method whose indexes this class opens."""
    typed_options: ClassVar[tuple[str, ...]] = ()
    """Fields of a subclass that are options of its method's search."""

    index_path: PathName | None = Field(default=None, frozen=True)
    """Folder of the index; a name that begins with ``memory:`` where it has none."""
    model: ModelName | None = Field(default=None, frozen=True)
    """The checkpoint it was made with, if not the copy in that folder."""
    engine: str = Field(default="exact", frozen=True, pattern=r"^(exact|faiss|(ivf|hnsw)(:.+)?)$")
    """``exact`` kernels, ``faiss``, ``ivf`` or ``hnsw``, see :meth:`palmette.Index.open`."""
    k: int = Field(default=4, ge=1)
    """How many documents; all of them when fewer match."""
    filter: dict[str, JsonValue] | None = None
    """Conditions on metadata, applied before ranking. Those of a call narrow it and cannot widen it, so that it keeps
    tenants apart.
    """
    score_threshold: float | None = None
    """Leave out documents that score less, by the score that ``lexical`` makes."""
    lexical: Annotated[float, Field(ge=0, le=1)] | Literal["auto"] | None = None
    """How much words count beside the method: 0 (not at all) … 1 (words alone), ``"auto"`` for what the checkpoint has
    learned; ``None`` for palmette's default.
    """
    score_key: str | None = "score"
    """Metadata key for the score; ``None`` for none (a document is then equal under all queries)."""
    explain: bool = False
    """Say of every document why it was found."""
    search_options: dict[str, JsonValue] = Field(default_factory=dict)
    """Options of the checkpoint's method, such as ``{"level": 6}``."""

    _index: Index | None = PrivateAttr(default=None)
    _copies: Index | None = PrivateAttr(default=None)

    @field_validator("filter")
    @classmethod
    def _check_filter(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        parse_filter(value)
        return value

    def model_post_init(self, context: Any, /) -> None:
        """Take hold of an index in memory, which lives only as long as someone does."""
        super().model_post_init(context)
        self._index = find(str(self.index_path))

    # -- making ---------------------------------------------------------------------------------------------

    @classmethod
    def from_documents(
        cls,
        documents: Iterable[Document],
        model: str | Path | Model,
        *,
        index_path: str | Path | None = None,
        token: str | bool | None = None,
        progress: bool | None = None,
        **fields: Any,
    ) -> Self:
        """Index documents.

        Args:
            documents: What to find; an id that is missing is made from the content.
            model: A checkpoint, by folder or Hub repository, or a loaded model, which retrievers may share.
            index_path: Where to keep the index; one that is there is brought up to date with the documents
                (others stay). ``None`` keeps it in memory, for as long as the retriever.
            token: Hub token, where the client's own login is not enough; kept nowhere.
            progress: Progress bars; ``None`` shows them on a terminal.
            fields: Those of the class.
        """
        from palmette.data import to_documents
        from palmette.index import Index

        probe = cls(**fields)
        options = probe._loading() | ({} if token is None else {"token": token})
        told = list(to_documents(documents))
        loaded = probe._checked(open_model(str(name_of(model)), options))
        index = Index.build(told, loaded, index_path, engine=probe.engine, progress=progress)
        made = cls.from_index(index, **fields)
        if index_path is not None:
            publish(index, made._place())
        return made

    @classmethod
    def from_pretrained(
        cls,
        repo: str | Path,
        documents: Iterable[Document],
        *,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
        index_path: str | Path | None = None,
        **fields: Any,
    ) -> Self:
        """Index documents with a checkpoint from the Hub; see :meth:`from_documents`."""
        fields |= {"revision": revision, "cache_dir": cache_dir, "local_files_only": local_files_only}
        return cls.from_documents(documents, repo, index_path=index_path, token=token, **fields)

    @classmethod
    def from_index(cls, index: str | Path | Index, **fields: Any) -> Self:
        """A retriever of an index: a folder, or one that is open."""
        if isinstance(index, str | Path):
            opened = cls(index_path=index, **fields)
            opened._open()
            return opened
        where: dict[str, Any] = {"index_path": index.path, "engine": index.engine}
        if index.path is None or index.within is not None:  # opened again it would be gone, or whole
            where = {"index_path": name_of(index)}
        made = cls(**where | fields)
        made._checked(index.model)
        made._index = index
        return made

    # -- the index ------------------------------------------------------------------------------------------

    @property
    def index(self) -> Index:
        """The index, narrowed by :attr:`filter`; opened when first asked for, and shared."""
        index = self._open() if self._index is None else self._index
        return index.filtered(self.filter) if self.filter else index

    def _open(self) -> Index:
        self._index = self._shared()
        return self._index

    def _shared(self) -> Index:
        """What every copy of this retriever opens."""
        if self.index_path is None:
            raise ConfigError(
                f"this {type(self).__name__} has no index: give index_path='a-folder', or use from_documents"
            )
        index = open_index(self._place())
        self._checked(index.model)
        return index

    def _place(self) -> Place:
        model = None if self.model is None else str(self.model)
        return str(self.index_path), model, self._loading(), self.engine

    def _checked(self, model: Model) -> Model:
        """Raise unless this class, and the options it was made with, are for such a model."""
        if self.method not in (None, model.method):
            raise ConfigError(
                f"{type(self).__name__} is for models of method {self.method!r}, and this one is of method "
                f"{model.method!r}: use {model.retriever}, or PalmetteRetriever for any"
            )
        model.search_options(self._own())
        return model

    def _own(self) -> dict[str, Any]:
        """The method's options that this retriever was made with; ``None`` is the method's own default."""
        typed = {name: getattr(self, name) for name in self.typed_options}
        return given({**self.search_options, **given(typed)})

    def configurable_fields(self, **kwargs: AnyConfigurableField) -> Any:
        """As always; LangChain makes a copy for every call, and all copies share the index opened here."""
        self._copies = self._shared()
        return super().configurable_fields(**kwargs)

    # -- searching ------------------------------------------------------------------------------------------

    def _hits(
        self,
        queries: list[str],
        *,
        k: int | None = None,
        filter: dict[str, Any] | None = None,
        score_threshold: float | None = None,
        lexical: float | Literal["auto"] | None = None,
        explain: bool = False,
        **options: Any,
    ) -> list[list[Hit]]:
        index = self.index
        check_keys(type(self).__name__, options, (*CALL, *index.model.search_class.names()))
        how = given({**self._own(), **options})
        threshold = self.score_threshold if score_threshold is None else score_threshold
        k = self.k if k is None else k
        words = self.lexical if lexical is None else lexical
        if words is not None:
            how["lexical"] = words
        return index.search(queries, k, filter=filter, threshold=threshold, explain=explain, **how)

    def _found(self, queries: list[str], *, explain: bool | None = None, **call: Any) -> list[list[Document]]:
        why = self.explain if explain is None else explain
        found = self._hits(queries, explain=why, **call)
        return [[from_hit(hit, self.score_key, why) for hit in hits] for hits in found]

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **call: Any
    ) -> list[Document]:
        return self._found([query], **call)[0]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **call: Any
    ) -> list[Document]:
        return (await run_in_thread(self._found, [query], **call))[0]

    def similarity_search_with_score(
        self, query: str, k: int | None = None, *, explain: bool = False, **call: Any
    ) -> list[tuple[Document, float]]:
        """Documents as they were given, each with its score; options as in ``invoke``."""
        [hits] = self._hits([query], k=k, explain=explain, **call)
        return [(from_hit(hit, None, explain), float(hit.score)) for hit in hits]

    async def asimilarity_search_with_score(
        self, query: str, k: int | None = None, **call: Any
    ) -> list[tuple[Document, float]]:
        """See :meth:`similarity_search_with_score`."""
        return await run_in_thread(self.similarity_search_with_score, query, k, **call)

    # -- LangChain ------------------------------------------------------------------------------------------

    @classmethod
    def is_lc_serializable(cls) -> bool:
        """Fields are JSON, and all that is needed."""
        return True

    def _get_ls_params(self, **kwargs: Any) -> LangSmithRetrieverParams:
        """Names for tracing."""
        model = None if self._index is None else self._index.model
        method = self.method or (model.method if model else None)
        return LangSmithRetrieverParams(
            ls_retriever_name=f"palmette_{method}" if method else "palmette",
            ls_vector_store_provider="palmette",
            ls_embedding_provider="palmette",
            ls_embedding_model=model.encoder.name if model else None,
        )
