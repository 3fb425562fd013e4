"""Index: documents in, explained hits out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Self

from palmette.errors import ConfigError, InputError, StoreError
from palmette.index.copies import Copying
from palmette.index.encoding import index_arrays
from palmette.index.explore import Exploring
from palmette.index.feedback import TakesFeedback
from palmette.index.folder import Engine, IndexStats, ModelLike, Place, as_model, create_index, index_exists, open_index
from palmette.index.inputs import absolute, check_documents, check_ids, check_opening, unique
from palmette.index.syncing import Syncing
from palmette.index.write import Changes, apply_changes
from palmette.lexical.analyser import LANGUAGE
from palmette.machine.telemetry import writing
from palmette.machine.threads import run_in_thread
from palmette.methods.base import Model
from palmette.search.faiss_engine import is_engine
from palmette.sources.cutting import AUTO, PassagesLike, new_cutter, opened_cutter
from palmette.store.filters import Filter, FilterLike, parse_filter
from palmette.store.local.backend import LocalBackend, Verify
from palmette.store.protocols import Backend
from palmette.store.tenants import FilteredBackend, with_tenants
from palmette.types import Document

Documents = Iterable[Any] | str | Path
"""Documents of any kind that :func:`palmette.data.to_document` knows, or a path to read them from."""


class Index(Syncing, Copying, TakesFeedback, Exploring):
    """Documents and their arrays under one model, in a folder, in memory or in a collection.

    Many threads and processes may search while one writes; a search sees the state before or after a write,
    never between. Use :meth:`create`, :meth:`open` or :meth:`in_memory`.
    """

    def __init__(
        self, model: Model, backend: Backend, path: Place | None = None, *, passages: PassagesLike = None
    ) -> None:
        super().__init__(model, backend)
        self._cutter = opened_cutter(model, backend, passages)
        self.path = path
        """Folder or URL to open the index from again; ``None`` for one in memory."""

    # -- creating and opening -------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        path: str | Path,
        model: ModelLike | None = None,
        *,
        encoder: Any = None,
        language: str | None = LANGUAGE,
        sentences: bool = True,
        tenant: str | None = None,
        passages: PassagesLike = AUTO,
        engine: Engine = "exact",
        lock_timeout: float = 10.0,
    ) -> Self:
        """Create an empty index in a new place, with a copy of the model's checkpoint.

        Args:
            path: A new or empty folder; or the URL of a new Qdrant collection, ``qdrant://host:6333/name``.
            model: A model, or the folder or repository of its checkpoint; ``None`` for the default encoder, untrained.
            encoder: Encoder of an untrained model, as :func:`palmette.load_encoder` takes it: a name, LangChain's
                ``Embeddings``, LlamaIndex's ``BaseEmbedding``, or a function from texts to vectors. :meth:`open` needs
                the last three again.
            language: Language of the stemmer, so that "searches" matches "search"; ``None`` for no stemming.
            sentences: Also store a vector for every sentence (about 400 bytes each): the best sentence of a hit then
                counts for its rank, and is highlighted.
            tenant: Metadata name whose values separate tenants who must not learn of each other. Each document has
                exactly one value, and its stored id begins with it (``ada/1``). ``index.filtered({tenant: "ada"})``
                shows the id ``1``; other tenants may use the same id.
            passages: How to cut long documents into the passages that are encoded and ranked: options
                (:class:`palmette.sources.passages.PassageOptions`, or a dict of them); a splitter of LangChain or
                LlamaIndex; a function from a text to slices of it; ``None`` for one passage per document. By default
                passages have at most 350 tokens (documents of a taxonomy are never cut).
            engine: As for :meth:`open`.
            lock_timeout: Seconds that a write waits for another writer.
        """
        path, model = absolute(path), as_model(model, encoder)
        check_opening(engine, lock_timeout)  # before there is a folder
        cutter = new_cutter(model, passages)
        create_index(path, model, index_arrays(model, sentences), language, tenant, cutter.recorded)
        return cls.open(path, model, verify=False, engine=engine, lock_timeout=lock_timeout, passages=cutter.splitter)

    @classmethod
    def open(
        cls,
        path: str | Path,
        model: Model | None = None,
        *,
        verify: Verify = "fast",
        engine: Engine = "exact",
        lock_timeout: float = 10.0,
        passages: PassagesLike = None,
        **model_options: Any,
    ) -> Self:
        """Open an index.

        Args:
            path: The folder, or the URL of the collection.
            model: The model that the index was created with, if it is loaded already; ``None`` loads the copy inside.
            verify: ``fast`` reads every file once and compares its checksums; ``full`` also compares every document
                with its digest and with the columns that filters read; ``False`` compares sizes and commits only.
            engine: ``exact``, ``faiss``; or approximate: ``ivf``, ``hnsw`` (:data:`palmette.index.Engine`).
            lock_timeout: Seconds that a write waits for another writer.
            passages: The splitter that the index was created with, needed to add documents: an index stores only its
                name.
            model_options: Options of :meth:`Model.from_pretrained`, such as ``device`` and ``local_files_only``.
        """
        path = absolute(path)
        check_opening(engine, lock_timeout)
        model, backend = open_index(path, model, model_options, engine=engine, lock_timeout=lock_timeout, verify=verify)
        try:
            return cls(model, backend, getattr(backend, "url", path), passages=passages)  # the URL has no key
        except BaseException:
            backend.close()
            raise

    @classmethod
    def open_or_create(
        cls,
        path: str | Path,
        model: ModelLike | None = None,
        *,
        encoder: Any = None,
        language: str | None = LANGUAGE,
        sentences: bool = True,
        tenant: str | None = None,
        passages: PassagesLike = AUTO,
        verify: Verify = "fast",
        engine: Engine = "exact",
        lock_timeout: float = 10.0,
    ) -> Self:
        """Open the index in a folder, or create one where there is none.

        The arguments are those of :meth:`create` and :meth:`open`. An existing index keeps its ``language``,
        ``sentences`` and ``tenant``, and its model if none is given; other ``passages`` than its own raise.
        """
        path = absolute(path)
        options: dict[str, Any] = {"engine": engine, "lock_timeout": lock_timeout, "passages": passages}
        if not index_exists(path):
            created = options | {"language": language, "sentences": sentences, "tenant": tenant}
            try:
                return cls.create(path, model, encoder=encoder, **created)
            except (InputError, StoreError):
                if not index_exists(path):  # else another process has created it meanwhile
                    raise
        options |= {"verify": verify} | ({"encoder": encoder} if encoder else {})
        if passages == AUTO:
            del options["passages"]
        index = cls.open(path, None if model is None else as_model(model), **options)
        if passages is None and index.backend.passages is not None:
            index.close()
            raise ConfigError(f"{path} cuts documents, {index.backend.passages}: leave passages=None out")
        return index

    @classmethod
    def in_memory(
        cls,
        model: ModelLike | None = None,
        *,
        encoder: Any = None,
        language: str | None = LANGUAGE,
        sentences: bool = True,
        tenant: str | None = None,
        passages: PassagesLike = AUTO,
        engine: Engine = "exact",
    ) -> Self:
        """Create an index that is deleted with the object; arguments as for :meth:`create`."""
        model = as_model(model, encoder)
        cutter = new_cutter(model, passages)
        backend = LocalBackend.in_memory(
            index_arrays(model, sentences),
            fingerprint=model.fingerprint,
            language=language,
            engine=engine,
            tenant=tenant,
            passages=cutter.recorded,
        )
        return cls(model, backend, passages=cutter.splitter)

    @classmethod
    def build(
        cls,
        documents: Documents,
        model: ModelLike | None = None,
        path: str | Path | None = None,
        *,
        encoder: Any = None,
        language: str | None = LANGUAGE,
        sentences: bool = True,
        tenant: str | None = None,
        passages: PassagesLike = AUTO,
        engine: Engine = "exact",
        embeddings: Any = None,
        progress: bool | None = None,
    ) -> Self:
        """Index documents, in memory or in a folder; an index that exists is brought up to date.

        Args:
            documents: Documents of any length, dicts with a ``text``, texts, the frameworks' documents; or a path to
                read them from, as :func:`palmette.load_data` does.
            model: As for :meth:`create`; ``None`` for the default encoder, with nothing to train.
            path: The folder; ``None`` for memory.
            encoder: As for :meth:`create`.
            language: As for :meth:`create`.
            sentences: As for :meth:`create`.
            tenant: As for :meth:`create`.
            passages: As for :meth:`create`.
            engine: As for :meth:`open`.
            embeddings: As for :meth:`add`.
            progress: A progress bar; ``None`` shows it on a terminal.
        """
        checked = check_documents(documents)
        unique(checked if tenant is None else with_tenants(checked, tenant))  # raises before there is a folder
        if path is None or model is not None or encoder is not None:
            model = as_model(model, encoder)
        options: dict[str, Any] = {"language": language, "sentences": sentences, "tenant": tenant, "engine": engine}
        options["passages"] = passages
        index = cls.in_memory(model, **options) if path is None else cls.open_or_create(path, model, **options)
        index.upsert(checked, embeddings=embeddings, progress=progress)
        return index

    def filtered(self, filter: FilterLike) -> Self:
        """Return the same index restricted to the documents that pass a filter (a tenant, a language).

        It shows, finds, adds and deletes only documents that pass, and its users cannot get around the filter.
        """
        parsed = parse_filter(filter)
        if parsed is None:
            return self
        filtered = type(self)(self.model, FilteredBackend(self.backend, parsed), self.path)
        filtered._cutter = self._cutter
        filtered._measured_within = self._measured_within
        return filtered

    @property
    def engine(self) -> str:
        """Search engine of the arrays, by its name in :meth:`open`; ``exact`` for a collection, which has its own."""
        return self.backend.engine if is_engine(self.backend.engine) else "exact"

    @property
    def within(self) -> Filter | None:
        """Filter of a :meth:`filtered` index."""
        return getattr(self.backend, "within", None)

    async def asearch(self, query: Any, k: int = 10, **options: Any) -> Any:
        """:meth:`search` in a thread, off the event loop; simultaneous searches share one pass of the encoder."""
        return await run_in_thread(partial(self.search, query, k, **options))

    # -- writing --------------------------------------------------------------------------------------------

    def add(
        self, documents: Documents, *, embeddings: Any = None, batch_size: int = 256, progress: bool | None = None
    ) -> list[str]:
        """Add documents, all or none; documents that the index already has change nothing. Returns the ids.

        An id with other content raises DuplicateIdError: use :meth:`upsert` to replace it. ``embeddings`` are vectors
        [N, d] of the documents by the model's encoder, an array or a tensor, for methods that need no token states.
        """
        stored = self._with_stored_ids(documents)
        settings = embeddings, batch_size, progress
        apply_changes(self.model, self.backend, stored, *settings, replace=False, cutter=self._cutter)
        return [document.key for document in stored]

    def upsert(
        self,
        documents: Documents,
        *,
        delete: Iterable[str] = (),
        embeddings: Any = None,
        batch_size: int = 256,
        progress: bool | None = None,
    ) -> Changes:
        """Add documents, and replace those whose id exists with other content; unchanged ones are not encoded again.

        The documents whose ids are in ``delete`` are deleted in the same transaction. ``embeddings`` as for
        :meth:`add`.
        """
        stored, deleted_ids = self._with_stored_ids(documents), check_ids(delete)
        settings = embeddings, batch_size, progress
        return apply_changes(
            self.model, self.backend, stored, *settings, replace=True, cutter=self._cutter, delete=deleted_ids
        )

    def _with_stored_ids(self, documents: Documents) -> list[Document]:
        """Read documents, and prefix their ids with their tenants in an index of several tenants."""
        checked, tenant = check_documents(documents), self.backend.tenant
        return checked if tenant is None else with_tenants(checked, tenant)

    def delete(self, ids: Iterable[str] | None = None, *, filter: FilterLike = None) -> list[str]:
        """Delete documents by id or by filter; unknown ids are ignored. Returns the ids that were deleted."""
        if (ids is None) == (filter is None):
            raise InputError("delete takes ids or a filter: give one of the two")
        if ids is None and parse_filter(filter) is None:
            raise InputError("an empty filter would delete every document: name them by id if that is meant")
        with writing(lambda: str(self.backend.stats().location)) as record, self.backend.write() as writer:
            deleted = writer.delete([d.key for d in self.documents(filter)] if ids is None else check_ids(ids))
            record({"deleted": len(deleted)})
        return deleted

    def compact(self) -> None:
        """Free the space of deleted and replaced documents."""
        self.backend.compact()

    # -- reading --------------------------------------------------------------------------------------------

    def get(self, ids: Iterable[str]) -> list[Document | None]:
        """Return whole documents by id, ``None`` where there is none."""
        return self.backend.get(check_ids(ids))

    def documents(self, filter: FilterLike = None) -> Iterator[Document]:
        """Iterate over all documents that pass a filter."""
        return self.backend.scan(parse_filter(filter))

    def stats(self) -> IndexStats:
        """Count documents, passages, segments and bytes."""
        stats = asdict(self.backend.stats())
        return IndexStats(**stats, method=self.model.method, model=self.model.fingerprint, tenant=self.backend.tenant)

    def verify(self) -> None:
        """Compare every file with its checksum and every document with its digest; raises CorruptIndexError."""
        self.backend.verify()

    def close(self) -> None:
        """Release the files."""
        self.backend.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the path of the index; another process opens the index itself."""
        if self.path is None:
            raise StoreError("an index in memory cannot be pickled: index.copy_to(folder), and pickle that one")
        return _reopen, (type(self), str(self.path), self.engine, self.within)

    def __len__(self) -> int:
        """Number of documents."""
        with self.backend.read() as view:
            return view.count_documents()

    def __contains__(self, id: str) -> bool:
        return self.get([id])[0] is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Index of {self.model!r}: {self.backend.stats().location}>"


def _reopen(cls: type[Index], path: str, engine: Engine, within: Filter | None) -> Index:
    return cls.open(path, engine=engine).filtered(within)
