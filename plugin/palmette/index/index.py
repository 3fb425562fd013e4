"""Index: documents in, explained hits out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from palmette.arrays import Floats, unit_rows
from palmette.errors import ConfigError, InputError, StoreError
from palmette.index.copies import Copying
from palmette.index.encoding import index_arrays
from palmette.index.explore import Exploring
from palmette.index.feedback import TakesFeedback
from palmette.index.folder import Engine, IndexStats, ModelLike, Place, as_model, create_index, index_exists, open_index
from palmette.index.inputs import absolute, check_documents, check_ids, check_opening, unique
from palmette.index.overview import vector_array
from palmette.index.results import FilterLike
from palmette.index.syncing import Syncing
from palmette.index.write import Changes, apply_changes
from palmette.lexical.analyser import LANGUAGE
from palmette.model import Model
from palmette.search.faiss_engine import is_engine
from palmette.sources.cutting import AUTO, PassagesLike, new_cutter, opened_cutter
from palmette.store.backend import Backend
from palmette.store.filters import Filter, parse_filter
from palmette.store.local.backend import LocalBackend, Verify
from palmette.store.tenants import FilteredBackend, with_tenants
from palmette.telemetry import writing
from palmette.threads import run_in_thread
from palmette.types import Document, Hit

Documents = Iterable[Any] | str | Path
"""Documents of any kind :func:`palmette.data.to_document` knows, or a path."""


class Index(Syncing, Copying, TakesFeedback, Exploring):
    """Documents, and their arrays under one model, in a folder, in memory or in another backend.

    Many threads and processes may search while one writes; a search sees the state before or after a write,
    never between. Use :meth:`create`, :meth:`open` or :meth:`in_memory`.
    """

    def __init__(
        self, model: Model, backend: Backend, path: Place | None = None, *, passages: PassagesLike = None
    ) -> None:
        super().__init__(model, backend)
        self._cutter = opened_cutter(model, backend, passages)
        self.path = path
        """Folder or URL it can be opened from again; ``None`` for one in memory."""

    # -- making and opening ---------------------------------------------------------------------------------

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
        """Create an empty index in a new place; it keeps a copy of the model's checkpoint beside the data.

        Args:
            path: A new or empty folder; or the URL of a new Qdrant collection, ``qdrant://host:6333/name``.
            model: A model, or the folder or repository of its checkpoint; ``None`` for the default encoder, untrained.
            encoder: Instead of a model, what :func:`palmette.load_encoder` takes: a name, LangChain's ``Embeddings``,
                LlamaIndex's ``BaseEmbedding``, a function from texts to vectors. The last three are given to
                :meth:`open`, too.
            language: Whose word endings are cut off, so that "searches" finds "search"; ``None`` for none.
            sentences: Store a vector for every sentence too (about 400 bytes each): a hit is then ranked by its best
                sentence as well, and shows it.
            tenant: Metadata name by whose values the documents are parted, for tenants who must not learn of each
                other: each document has exactly one value, which its id begins with (``ada/1``). In
                ``index.filtered({tenant: "ada"})`` it has the id ``1``, and no other tenant's ids are taken.
            passages: How long documents are cut into the passages that are encoded, ranked and found: options
                (:class:`palmette.sources.passages.PassageOptions`, or a dict of them); a splitter of LangChain or
                LlamaIndex; a function from a text to slices of it; ``None`` for one passage a document. By default
                passages have 350 tokens at most (documents of a taxonomy are never cut).
            engine: As for :meth:`open`.
            lock_timeout: Seconds a write waits for another writer.
        """
        path, model = absolute(path), as_model(model, encoder)
        check_opening(engine, lock_timeout)  # a wrong one leaves no folder behind
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
            model: The very model it was made with, when it is loaded already; ``None`` loads the copy inside.
            verify: ``fast`` reads every file once and compares it with its checksums; ``full`` also compares every
                document with its digest and the columns that filters read; ``False`` compares sizes and commits.
            engine: ``exact``, ``faiss``; or approximate: ``ivf``, ``hnsw`` (:data:`palmette.index.Engine`).
            lock_timeout: Seconds a write waits for another writer.
            passages: The splitter that the index was created with, to add documents: an index keeps only its name.
            model_options: ``device``, ``local_files_only``, … of :meth:`Model.from_pretrained`.
        """
        path = absolute(path)
        check_opening(engine, lock_timeout)
        how: dict[str, Any] = {"engine": engine, "lock_timeout": lock_timeout, "verify": verify}
        opened, backend = open_index(path, model, model_options, **how)
        try:
            return cls(opened, backend, getattr(backend, "url", path), passages=passages)  # without a key
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

        ``language``, ``sentences`` and ``tenant`` are those of a new one, ``encoder`` is that of both; other
        ``passages`` than an index was created with raise.
        """
        folder = absolute(path)
        how: dict[str, Any] = {"engine": engine, "lock_timeout": lock_timeout}
        if index_exists(folder):  # without a model given, by its own
            how |= {"passages": None if passages == AUTO else passages} | ({"encoder": encoder} if encoder else {})
            made = cls.open(folder, None if model is None else as_model(model), verify=verify, **how)
            if passages is None and made.backend.passages is not None:
                made.close()
                raise ConfigError(f"{folder} cuts documents, {made.backend.passages}: leave passages=None out")
            return made
        more: dict[str, Any] = {"sentences": sentences, "tenant": tenant, "passages": passages, "encoder": encoder}
        return cls.create(folder, model, language=language, **more, **how)

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
        """Create an index that lives as long as the object."""
        model = as_model(model, encoder)
        cutter = new_cutter(model, passages)
        how: dict[str, Any] = {"fingerprint": model.fingerprint, "language": language, "engine": engine}
        how |= {"tenant": tenant, "passages": cutter.recorded}
        backend = LocalBackend.in_memory(index_arrays(model, sentences), **how)
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
        given = check_documents(documents)
        unique(given if tenant is None else with_tenants(given, tenant))  # complain before there is a folder
        if path is None or model is not None or encoder is not None:
            model = as_model(model, encoder)
        how: dict[str, Any] = {"language": language, "sentences": sentences, "tenant": tenant, "engine": engine}
        how["passages"] = passages
        made = cls.in_memory(model, **how) if path is None else cls.open_or_create(path, model, **how)
        made.upsert(given, embeddings=embeddings, progress=progress)
        return made

    def filtered(self, filter: FilterLike) -> Self:
        """Return the same index behind a filter that its user cannot get around (a tenant, a language).

        It shows, finds and deletes only documents that pass, and takes only such documents in.
        """
        parsed = parse_filter(filter)
        if parsed is None:
            return self
        made = type(self)(self.model, FilteredBackend(self.backend, parsed), self.path)
        made._cutter = self._cutter
        made._measured_within = self._measured_within
        return made

    @property
    def engine(self) -> str:
        """Search engine of the arrays, as it was given; ``exact`` of a collection, whose own engine searches."""
        return self.backend.engine if is_engine(self.backend.engine) else "exact"

    @property
    def within(self) -> Filter | None:
        """Filter that this index lies behind, if any."""
        return getattr(self.backend, "within", None)

    async def asearch(self, query: Any, k: int = 10, **how: Any) -> Any:
        """:meth:`search` off the event loop; searches that arrive together share one encoding pass."""
        return await run_in_thread(partial(self.search, query, k, **how))

    # -- writing --------------------------------------------------------------------------------------------

    def add(
        self, documents: Documents, *, embeddings: Any = None, batch_size: int = 256, progress: bool | None = None
    ) -> list[str]:
        """Add documents, all or none; one that is there already changes nothing. Returns the ids.

        An id that holds another text raises DuplicateIdError: use :meth:`upsert` to replace it. ``embeddings``: the
        vectors [N, d] by the model's encoder, an array or a tensor, for methods that need no more (layers).
        """
        given = self._named(documents)
        how = embeddings, batch_size, progress
        apply_changes(self.model, self.backend, given, *how, replace=False, cutter=self._cutter)
        return [document.key for document in given]

    def upsert(
        self,
        documents: Documents,
        *,
        delete: Iterable[str] = (),
        embeddings: Any = None,
        batch_size: int = 256,
        progress: bool | None = None,
    ) -> Changes:
        """Add documents, replacing those whose id exists with other content; unchanged ones are not encoded again.

        Documents to ``delete``, by id, go in the same transaction; ``embeddings`` as for :meth:`add`.
        """
        given, gone = self._named(documents), check_ids(delete)
        how = embeddings, batch_size, progress
        return apply_changes(self.model, self.backend, given, *how, replace=True, cutter=self._cutter, delete=gone)

    def _named(self, documents: Documents) -> list[Document]:
        """Read documents, and give them the ids that they have in an index of several tenants."""
        given, tenant = check_documents(documents), self.backend.tenant
        return given if tenant is None else with_tenants(given, tenant)

    def delete(self, ids: Iterable[str] | None = None, *, filter: FilterLike = None) -> list[str]:
        """Delete documents by id or by filter; ids that are not there are passed over. Returns those deleted."""
        if (ids is None) == (filter is None):
            raise InputError("delete takes ids or a filter: give one of the two")
        if ids is None and parse_filter(filter) is None:
            raise InputError("an empty filter would delete every document: name them by id if that is meant")
        with writing(lambda: str(self.backend.stats().location)) as tell, self.backend.write() as writer:
            deleted = writer.delete([d.key for d in self.documents(filter)] if ids is None else check_ids(ids))
            tell({"deleted": len(deleted)})
        return deleted

    def compact(self) -> None:
        """Give back the space of deleted and replaced documents."""
        self.backend.compact()

    # -- reading --------------------------------------------------------------------------------------------

    def get(self, ids: Iterable[str]) -> list[Document | None]:
        """Return whole documents by id, ``None`` where there is none."""
        return self.backend.get(check_ids(ids))

    def vectors(self, ids: Iterable[str | Hit]) -> Floats:
        """Return stored vectors of documents, of length 1: [n, d]; zeros for an id that is not there.

        A document of several passages has the mean of theirs; a hit has its passage's own.
        """
        spec = vector_array(self.model)
        unchecked: Any = ids
        listed = isinstance(unchecked, Iterable) and not isinstance(unchecked, str)
        given: list[str | Hit] = list(unchecked if listed else check_ids(unchecked))
        wanted = check_ids([one.id if isinstance(one, Hit) else one for one in given])
        found = np.zeros((len(wanted), *spec.shape), np.float32)
        with self.backend.read() as view:
            known = view.keys_of(wanted)
            keys = [known.get(id, ()) for id in wanted]
            for row, one in enumerate(given):
                if isinstance(one, Hit) and one.passage is not None:
                    keys[row] = keys[row][one.passage.number : one.passage.number + 1]
            rows = view.rows(spec.name, [key for some in keys for key in some])
            owners = np.repeat(np.arange(len(wanted)), list(map(len, keys)))
            np.add.at(found, owners, unit_rows(rows.astype(np.float32)))
        return unit_rows(found)

    def documents(self, filter: FilterLike = None) -> Iterator[Document]:
        """Iterate over all documents that pass a filter."""
        return self.backend.scan(parse_filter(filter))

    def stats(self) -> IndexStats:
        """Count documents, passages, segments and bytes."""
        held, model = self.backend.stats(), self.model
        sizes = held.bytes, held.segments, held.reclaimable
        own = held.documents, model.method, model.fingerprint, held.location
        return IndexStats(*own, *sizes, self.backend.tenant, held.passages)

    def survey(self) -> dict[str, Any]:
        """Describe how the documents fit the model's structure: how full its leaves are, for instance."""
        with self.backend.read() as view:
            return self.model.describe(view)

    def verify(self) -> None:
        """Check every file against its checksum and every document against its digest; raises CorruptIndexError."""
        self.backend.verify()

    def close(self) -> None:
        """Release the files."""
        self.backend.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled, an index is its folder: another process opens it for itself."""
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
