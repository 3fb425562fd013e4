"""Index: documents in, explained hits out."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, Self, overload
from weakref import ref

import numpy as np

from palmette.arrays import Floats, Keys, unit_rows
from palmette.config import check_count, check_range
from palmette.data import RetrievalData
from palmette.data.listing import Listing, list_source, source_name
from palmette.errors import ConfigError, InputError, NotFoundError, StoreError, shown
from palmette.index.context import CONTEXT_TOKENS, Context, context_of
from palmette.index.copies import copy_index, repair_folder
from palmette.index.encoding import index_arrays
from palmette.index.folder import (
    MODEL,
    Engine,
    IndexStats,
    ModelLike,
    Place,
    as_model,
    create_index,
    index_exists,
    open_index,
)
from palmette.index.grouping import Distinct, Duplicates, GroupBy, Selection, fold
from palmette.index.inputs import absolute, check_documents, check_ids, check_opening, local_path, unique
from palmette.index.overview import Overview, overview_of, vector_array
from palmette.index.questions import add_questions, questions_about
from palmette.index.results import Boost, Query, QueryBatch, QueryList, Ranking, SearchResult, encode_query_batch
from palmette.index.sync import NOTE, SyncReport, sync_source
from palmette.index.write import Changes, apply_changes, note_score_scales
from palmette.index.written import (
    MAX_TOKENS,
    THRESHOLD,
    TIMEOUT,
    AnswerEvent,
    Limits,
    WrittenAnswer,
    check_history,
    whole_question,
    write_answer,
)
from palmette.lexical.language import AUTO as AUTO_LANGUAGE
from palmette.lexical.language import stemmer_for
from palmette.machine import telemetry
from palmette.machine.llm import ChatUsage, as_llm
from palmette.machine.telemetry import writing
from palmette.machine.text import is_unicode
from palmette.machine.threads import run_in_thread
from palmette.methods.base import Model
from palmette.ranking.arrays import stores_sentences
from palmette.ranking.scales import SCORE_SCALES, measured_on, score_scales_for
from palmette.ranking.score import DEFAULT, Lexical, ScoreScales, noted_score_scales
from palmette.ranking.second_stage import Rerank, Reranker, SecondStage, as_reranker, noting
from palmette.search.faiss_engine import is_engine
from palmette.sources.cutting import AUTO, PassagesLike, new_cutter, opened_cutter
from palmette.store.engines import is_url
from palmette.store.filters import Filter, FilterLike, parse_filter
from palmette.store.local.backend import LocalBackend, Verify
from palmette.store.local.feedback import FeedbackLog
from palmette.store.local.folder import new_index_folder
from palmette.store.protocols import Backend, View
from palmette.store.repair import Repair
from palmette.store.tenants import FilteredBackend, with_tenants
from palmette.types import Document, Explanation, Hit

Documents = Iterable[Any] | str | Path
"""Documents of any kind that :func:`palmette.data.to_document` knows, or a path to read them from."""
SCOPES = 1024
"""Largest number of filtered indexes (:meth:`palmette.Index.filtered`) whose score scales are remembered."""

log = logging.getLogger("palmette.feedback")


class MeasuredScope(NamedTuple):
    """Score scales of a filtered index, and the documents that they were measured on."""

    keys: ref[Keys]
    """All keys in the scope; weak, since they may be as many as the index has."""
    digest: bytes
    """Hash of those that were measured."""
    score_scales: ScoreScales


class Index:
    """Documents and their arrays under one model, in a folder, in memory or in a collection.

    Many threads and processes may search while one writes; a search sees the state before or after a write,
    never between. Use :meth:`create`, :meth:`open` or :meth:`in_memory`.
    """

    # -- making and opening -------------------------------------------------------------------------------

    def __init__(self, model: Model, backend: Backend, path: Place | None = None) -> None:
        self.model = model
        self.backend = backend
        self._sentences = model.sentences and stores_sentences(backend)
        # by variant of the options: the note or number of documents at the measurement, and the score scales
        self._measured: dict[str, tuple[str | int, ScoreScales]] = {}
        self._measured_within: dict[tuple[Filter | None, str], MeasuredScope] = {}
        self._measuring = threading.Lock()
        self._cutter = opened_cutter(model, backend.passages)
        self._reranker: Reranker | None = None
        self.path = path
        """Folder or URL to open the index from again; ``None`` for one in memory."""

    @classmethod
    def create(
        cls,
        path: str | Path,
        model: ModelLike | None = None,
        *,
        encoder: Any = None,
        language: str | None = AUTO_LANGUAGE,
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
            language: Language of the stemmer, so that "searches" matches "search"; ``None`` for no stemming. By default
                :meth:`build` and ``palmette index`` take the language of most texts, and an empty index English.
            sentences: Also store a vector for every sentence (about 400 bytes each): the best sentence of a hit then
                counts for its rank, and is highlighted.
            tenant: Metadata name whose values separate tenants who must not learn of each other. Each document has
                exactly one value, and its stored id begins with it (``ada/1``). ``index.filtered({tenant: "ada"})``
                shows the id ``1``; other tenants may use the same id.
            passages: How to cut long documents into the passages that are encoded and ranked: options
                (:class:`palmette.sources.passages.PassageOptions`, or a dict of them); ``None`` for one passage per
                document. By default passages have at most 350 tokens (documents of a taxonomy are never cut).
            engine: As for :meth:`open`.
            lock_timeout: Seconds that a write waits for another writer.
        """
        path, model = absolute(path), as_model(model, encoder)
        check_opening(engine, lock_timeout)  # before there is a folder
        recorded = new_cutter(model, passages).recorded
        create_index(path, model, index_arrays(model, sentences), language, tenant, recorded)
        return cls.open(path, model, verify=False, engine=engine, lock_timeout=lock_timeout)

    @classmethod
    def open(
        cls,
        path: str | Path,
        model: Model | None = None,
        *,
        verify: Verify = "fast",
        engine: Engine = "exact",
        lock_timeout: float = 10.0,
        **model_options: Any,
    ) -> Self:
        """Open an index.

        Args:
            path: The folder, or the URL of the collection.
            model: The model that the index was created with, if it is loaded already; ``None`` loads the copy inside.
            verify: ``fast`` reads every file once and compares its checksums; ``full`` also compares every document
                with its digest and with the columns that filters read; ``False`` compares sizes and commits only.
            engine: ``exact``, ``faiss``; or approximate: ``ivf`` (:data:`palmette.index.Engine`).
            lock_timeout: Seconds that a write waits for another writer.
            model_options: Options of :meth:`Model.from_pretrained`, such as ``device`` and ``local_files_only``.
        """
        path = absolute(path)
        check_opening(engine, lock_timeout)
        model, backend = open_index(path, model, model_options, engine=engine, lock_timeout=lock_timeout, verify=verify)
        try:
            return cls(model, backend, getattr(backend, "url", path))  # the URL has no key
        except BaseException:
            backend.close()
            raise

    @classmethod
    def in_memory(
        cls,
        model: ModelLike | None = None,
        *,
        encoder: Any = None,
        language: str | None = AUTO_LANGUAGE,
        sentences: bool = True,
        tenant: str | None = None,
        passages: PassagesLike = AUTO,
        engine: Engine = "exact",
    ) -> Self:
        """Create an index that is deleted with the object; arguments as for :meth:`create`."""
        model = as_model(model, encoder)
        backend = LocalBackend.in_memory(
            index_arrays(model, sentences),
            fingerprint=model.fingerprint,
            language=stemmer_for(language),
            engine=engine,
            tenant=tenant,
            passages=new_cutter(model, passages).recorded,
        )
        return cls(model, backend)

    @classmethod
    def build(
        cls,
        documents: Documents,
        model: ModelLike | None = None,
        path: str | Path | None = None,
        *,
        encoder: Any = None,
        language: str | None = AUTO_LANGUAGE,
        sentences: bool = True,
        tenant: str | None = None,
        passages: PassagesLike = AUTO,
        engine: Engine = "exact",
        embeddings: Any = None,
        progress: bool | None = None,
    ) -> Self:
        """Index documents, in memory or in a folder; an index that exists is brought up to date.

        It keeps its ``language``, ``sentences`` and ``tenant``, and its model if none is given; other ``passages`` than
        its own raise.

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
        loaded = None if path is not None and model is None else as_model(model, encoder)
        language = stemmer_for(language, [document.content for document in checked])
        options: dict[str, Any] = {"language": language, "sentences": sentences, "tenant": tenant, "engine": engine}
        options["passages"] = passages
        if path is None:
            index = cls.in_memory(loaded, **options)
        else:
            index = cls._open_or_create(absolute(path), loaded, None if loaded else encoder, options)
        if checked or embeddings is not None:
            index.upsert(checked, embeddings=embeddings, progress=progress)
        return index

    @classmethod
    def _open_or_create(cls, path: Place, model: Model | None, encoder: Any, options: dict[str, Any]) -> Self:
        """Open the index at a place, or create one, with options of :meth:`create`, where there is none."""
        if not index_exists(path):
            try:
                return cls.create(path, model, encoder=encoder, **options)
            except (InputError, StoreError):
                if not index_exists(path):  # else another process has created it meanwhile
                    raise
        index = cls.open(path, model, engine=options["engine"], **({} if encoder is None else {"encoder": encoder}))
        passages, own = options["passages"], index._cutter.recorded
        if passages != AUTO and own != (other := new_cutter(index.model, passages).recorded):
            index.close()
            raise ConfigError(f"{path} cuts documents by {own}, not by {other}: leave passages={other} out")
        return index

    def filtered(self, filter: FilterLike) -> Self:
        """Return the same index restricted to the documents that pass a filter (a tenant, a language).

        It shows, finds, adds and deletes only documents that pass, and its users cannot get around the filter.
        """
        parsed = parse_filter(filter)
        if parsed is None:
            return self
        filtered = type(self)(self.model, FilteredBackend(self.backend, parsed), self.path)
        filtered._reranker = self._reranker
        filtered._measured_within, filtered._measuring = self._measured_within, self._measuring
        return filtered

    @property
    def engine(self) -> str:
        """Search engine of the arrays, by its name in :meth:`open`; ``exact`` for a collection, which has its own."""
        return self.backend.engine if is_engine(self.backend.engine) else "exact"

    @property
    def within(self) -> Filter | None:
        """Filter of a :meth:`filtered` index."""
        return getattr(self.backend, "within", None)

    @property
    def reranker(self) -> Reranker | None:
        """Second stage of searches without ``rerank=``; ``None`` for none. A folder keeps its learned weight only."""
        return self._reranker

    @reranker.setter
    def reranker(self, reranker: Rerank) -> None:
        self._reranker = None if reranker is None or reranker is False else as_reranker(reranker)

    # -- searching ----------------------------------------------------------------------------------------

    @overload
    def search(self, query: str, k: int = 10, **options: Any) -> list[Hit]: ...

    @overload
    def search(self, query: QueryList, k: int = 10, **options: Any) -> list[list[Hit]]: ...

    def search(
        self,
        query: Query | QueryList,
        k: int = 10,
        *,
        filter: FilterLike = None,
        threshold: float | None = None,
        lexical: Lexical = DEFAULT,
        sentences: bool = True,
        boost: Boost = None,
        rerank: Rerank = None,
        group_by: GroupBy | None = None,
        distinct: Distinct = False,
        explain: bool = False,
        **options: Any,
    ) -> list[Hit] | list[list[Hit]]:
        """Find the ``k`` best passages, best first.

        Args:
            query: One text; or a list of texts, or encoder embeddings [Q, d], for one list of hits per query. A tuple
                of texts within the list is one query, the mean of the vectors of its texts.
            k: Number of hits; fewer are returned only when fewer passages match.
            filter: Conditions on metadata, applied before ranking: ``{"lang": "en", "year": {"$gte": 2020}}``.
            threshold: Least probability of a hit.
            lexical: Weight of words beside meaning, from 0 (meaning alone) to 1 (words alone), or ``"auto"`` for the
                weight that the model has learned, else one half.
            sentences: Whether the best sentence counts beside the method's score, where the index stores sentences.
                ``lexical=0, sentences=False`` ranks as the method alone does.
            boost: Log-odds added by metadata, among the best hundred of each ranking: ``{"date":
                recency(half_life="90d"), "kind": {"guide": 0.5}}``. See :mod:`palmette.ranking.boost`.
            rerank: A second stage: a reranker (a :class:`~palmette.ranking.second_stage.Reranker`, or what it takes)
                judges the hits whose order is open, and its judgement is added to their log-odds. Where it fails or is
                late, the hits are those of the first stage, with a warning. ``False`` for none; by default
                :attr:`reranker`.
            group_by: ``"document"`` for the ``k`` best documents, each by its best passage; up to two further
                passages are the :attr:`Hit.others` of the hit.
            distinct: Return passages of equal text once, and cite the others in :attr:`Hit.copies`; ``"near"`` also
                merges passages that share four fifths of their word trigrams.
            explain: Explain every hit now, from the state that was searched; otherwise :meth:`Hit.explain` computes
                the explanation when it is called, if the document has not changed.
            options: The method's search options, such as ``level=`` for a tree.
        """
        single = isinstance(query, str)
        check_range("a search", "threshold", threshold, 0, 1)
        queries = [query] if isinstance(query, str) else query
        if isinstance(queries, Sequence) and not queries:
            return []
        k = check_count("k", k)
        plain = group_by is None and distinct is False
        selection = None if plain else Selection.of(group_by, distinct)
        location = str(getattr(self, "path", None) or "an index in memory")
        with telemetry.searching(self.model.method, location, queries) as record:
            batch = encode_query_batch(self.model, queries, options, lexical, sentences and self._sentences, boost)
            batch = self._with_second_stage(batch, rerank)
            with self.backend.read(filter) as view:
                copies: list[Duplicates] = []
                if selection is not None:
                    result, copies = selection.search(batch, view, k, self._score_scales)
                else:
                    result = batch.search(view, k, self._score_scales)
                results = result.to_hits(view, self.backend, threshold, explain, copies)
                if group_by:
                    results = [fold(hits, k) for hits in results]
            record(results)
        return results[0] if single else results

    async def asearch(self, query: Any, k: int = 10, **options: Any) -> Any:
        """:meth:`search` in a thread, off the event loop; simultaneous searches share one pass of the encoder."""
        return await run_in_thread(partial(self.search, query, k, **options))

    def rank(
        self,
        queries: QueryList,
        k: int = 10,
        *,
        filter: FilterLike = None,
        lexical: Lexical = DEFAULT,
        sentences: bool = True,
        boost: Boost = None,
        rerank: Rerank = None,
        **options: Any,
    ) -> Ranking:
        """Rank documents by id and score only, for evaluation: :meth:`search` without the documents' texts.

        A document counts once, by its best passage.
        """
        if isinstance(queries, Sequence) and not queries:
            return Ranking([], [], 0.0)
        k = check_count("k", k)
        batch = encode_query_batch(self.model, queries, options, lexical, sentences and self._sentences, boost)
        batch = self._with_second_stage(batch, rerank)
        with self.backend.read(filter) as view:
            ranked = k  # passages; several of them may be of one document
            while True:
                result = batch.search(view, ranked, self._score_scales)
                best = result.best_passages(view)  # [Q, n]
                exhausted = (result.candidates.keys >= 0).sum(axis=1) < ranked
                if ranked >= len(view) or ((best.sum(axis=1) >= k) | exhausted).all():
                    return result.ranking(view, best, k)
                ranked *= 4

    def explain(
        self,
        query: Query,
        id: str,
        *,
        filter: FilterLike = None,
        lexical: Lexical = DEFAULT,
        sentences: bool = True,
        boost: Boost = None,
        rerank: Rerank = None,
        **options: Any,
    ) -> Explanation:
        """Explain the score of a document's best passage, whether or not a search would return it.

        Args:
            query: The query of a search.
            id: Id of the document.
            filter: Filter of the search; a reranker judges the hits that pass it.
            lexical: As for :meth:`search`.
            sentences: As for :meth:`search`.
            boost: As for :meth:`search`.
            rerank: As for :meth:`search`. The reranker judges the search's hits, if it has not yet.
            options: The method's search options.
        """
        queries = np.atleast_2d(query)[:1] if isinstance(query, np.ndarray) else [query]
        [id], searched = check_ids([id]), parse_filter(filter)
        batch = encode_query_batch(self.model, queries, options, lexical, sentences and self._sentences, boost)
        batch = self._with_second_stage(batch, rerank)
        with self.backend.read() as view:
            passages = view.keys_of([id]).get(id)
            if passages is None:
                raise NotFoundError(f"there is no document {shown(id)} in this index")
            if batch.second is not None:  # what it adds depends on the hits that the search had judged
                with self.backend.read(searched) as view_of_search:
                    batch.search(view_of_search, 10, self._score_scales)
            evidence = batch.evidence(self._score_scales, view)
            candidates = batch.method_scores(view, 0, np.array(passages))
            if batch.calibration is not None:  # not the method's own evidence, which tells of a search
                candidates = evidence.score(view, 0, candidates.keys[0], candidates.scores[0])
            result, best = SearchResult(batch, evidence, candidates), int(candidates.scores[0].argmax())
            return result.explain(view, self.backend, 0, best)

    def context(
        self,
        question: str,
        tokens: int = CONTEXT_TOKENS,
        *,
        k: int = 20,
        filter: FilterLike = None,
        threshold: float = 0.0,
        lexical: Lexical = DEFAULT,
        boost: Boost = None,
        rerank: Rerank = None,
        **options: Any,
    ) -> Context:
        """Collect the best sentences for a question; ``str(index.context(question))`` goes into a prompt.

        The best sentences of the ``k`` best passages are returned with one sentence before and two after each, joined
        where they are adjacent, in the order of their documents. Each excerpt has a citation. Near-identical passages
        count once.

        Args:
            question: The question.
            tokens: Tokens of all excerpts together, as the index's encoder counts them.
            k: Number of passages whose sentences are read.
            filter: As for :meth:`search`.
            threshold: Least probability of a passage.
            lexical: As for :meth:`search`.
            boost: As for :meth:`search`.
            rerank: As for :meth:`search`.
            options: The method's search options.
        """
        if not isinstance(question, str):
            raise ConfigError(f"a context takes one question, a str; got {shown(question)}")
        k, tokens = check_count("k", k), check_count("tokens", tokens)
        check_range("a context", "threshold", threshold, 0, 1)
        batch = encode_query_batch(self.model, [question], options, lexical, self._sentences, boost)
        batch = self._with_second_stage(batch, rerank)
        with self.backend.read(filter) as view, noting() as notes:
            result, _ = Selection(distinct="near").search(batch, view, k, self._score_scales)
            context = context_of(result, view, question, tokens, self.model.encoder.count_tokens, threshold)
        return replace(context, note=notes.get(question, ""))

    def answer(self, question: str, llm: Any, **options: Any) -> WrittenAnswer:
        """Let a language model write an answer from :meth:`context`, and check its citations.

        Arguments as for :meth:`answer_stream`. False, and without any call of the model, where no passage fits.
        """
        *_, last = self.answer_stream(question, llm, **options)
        answer: WrittenAnswer = last.value
        return answer

    def answer_stream(
        self,
        question: str,
        llm: Any,
        *,
        history: Iterable[Any] = (),
        threshold: float = THRESHOLD,
        tokens: int = CONTEXT_TOKENS,
        max_tokens: int = MAX_TOKENS,
        timeout: float = TIMEOUT,
        **options: Any,
    ) -> Iterator[AnswerEvent]:
        """Yield a written answer as it comes: the question ``asked``, ``excerpts``, pieces of ``text``, the ``answer``.

        Closing the iterator ends the call of the model.

        Args:
            question: The question.
            llm: A chat model of LangChain, an LLM of LlamaIndex, ``"openai:MODEL"`` (key and URL from OPENAI_API_KEY
                and OPENAI_BASE_URL), or a function from messages, ``[{"role": …, "content": …}]``, to a text or to
                pieces of it.
            history: Earlier pairs (question, answer), or answers: the model first makes the question whole.
            threshold: Probability that the best passage must reach; otherwise the model is not called.
            tokens: Tokens of all excerpts together.
            max_tokens: Tokens of the model's reply.
            timeout: Seconds that each call of the model may take.
            options: Options of :meth:`context`: ``k``, ``filter``, ``lexical``, ``boost``, and the method's.
        """
        turns, model = check_history(question, history), as_llm(llm)
        check_range("an answer", "threshold", threshold, 0, 1)
        check_range("an answer", "timeout", timeout, 1e-3)
        limits = Limits(check_count("max_tokens", max_tokens), timeout)
        check_count("tokens", tokens)

        def events() -> Iterator[AnswerEvent]:
            """Call the model, after all options have been checked."""
            usage = ChatUsage()
            asked = whole_question(question, turns, model, limits, usage, threading.Event())
            yield AnswerEvent("asked", asked)
            context = self.context(asked, tokens, **options)
            settings = self.model.encoder, self.backend.language, usage, threading.Event()
            yield from write_answer(question, context, threshold, model, limits, *settings)

        return events()

    def overview(self, *, filter: FilterLike = None, topics: int = 12) -> Overview:
        """Survey the documents that pass a filter by so many topics at most, without a language model."""
        with self.backend.read(filter) as view:
            return overview_of(self.model, view, topics)

    def vectors(self, ids: Iterable[str | Hit]) -> Floats:
        """Return stored vectors of documents, of length 1: [n, d]; zeros for an unknown id.

        The vector of a document of several passages is the mean of theirs; a hit has the vector of its passage.
        """
        spec = vector_array(self.model)
        unchecked: Any = ids
        is_list = isinstance(unchecked, Iterable) and not isinstance(unchecked, str)
        items: list[str | Hit] = list(unchecked if is_list else check_ids(unchecked))
        document_ids = check_ids([item.id if isinstance(item, Hit) else item for item in items])
        sums = np.zeros((len(items), *spec.shape), np.float32)
        with self.backend.read() as view:
            keys_of = view.keys_of(document_ids)
            keys = [keys_of.get(id, ()) for id in document_ids]  # of the passages of each item
            for row, item in enumerate(items):
                if isinstance(item, Hit) and item.passage is not None:
                    keys[row] = keys[row][item.passage.number : item.passage.number + 1]
            vectors = view.rows(spec.name, [key for keys_of_item in keys for key in keys_of_item])
            owners = np.repeat(np.arange(len(items)), list(map(len, keys)))
            np.add.at(sums, owners, unit_rows(vectors.astype(np.float32)))
        return unit_rows(sums)

    def _with_second_stage(self, batch: QueryBatch, rerank: Rerank) -> QueryBatch:
        """Add the reranker of a search; the index's own is left out where it cannot judge."""
        if rerank is True and self._reranker is None:
            raise ConfigError(
                "rerank=True needs a reranker of the index, and it has none: set index.reranker, give rerank=…, or "
                "start the service with --rerank"
            )
        if rerank is None or rerank is True:
            reranker = self._reranker
        else:
            reranker = None if rerank is False else as_reranker(rerank)
        if reranker is None:
            return batch
        if batch.calibration is None or not batch.texts:
            if rerank is None:
                return batch
            what = "these options do not rank by score alone" if batch.texts else "a query of vectors has no text"
            raise ConfigError(f"rerank adds to a score by the text of a question, but {what}: leave rerank out")
        return replace(batch, second=SecondStage(reranker, batch.texts))

    def _score_scales(self, options: Any, view: View) -> ScoreScales:
        """Score scales for the options of a search.

        The index stores the units of the default options with its documents. Those of another variant of the options
        are measured on all documents when a search first needs them.
        """
        if view.scope_keys() is not None:
            return self._score_scales_within(options, view)
        variant, note = self.model.lexical_key(options) or "", view.note(SCORE_SCALES)
        stored = None if note is None else noted_score_scales(note)
        if stored is not None and not variant:
            return stored
        documents = stored.documents if stored else max(1, len(view))
        state, remembered = documents if note is None else note, self._measured.get(variant)
        if remembered is None or remembered[0] != state:
            with self.backend.read() as unfiltered:
                remembered = state, score_scales_for(self.model, options, unfiltered, self._sentences)
            self._measured[variant] = remembered
        return remembered[1].model_copy(update={"documents": documents})

    def _score_scales_within(self, options: Any, view: View) -> ScoreScales:
        """Score scales of a filtered index: learned in training, or measured on the documents it shows."""
        variant, keys = self.model.lexical_key(options) or "", view.scope_keys()
        assert keys is not None
        scope = (getattr(self.backend, "within", None), variant)
        remembered = self._measured_within.get(scope)
        if remembered is None or remembered.keys() is not keys:
            sample = measured_on(keys)
            digest = blake2b(sample.tobytes(), digest_size=16).digest()
            if remembered is not None and remembered.digest == digest:
                score_scales = remembered.score_scales
            elif len(view) < len(keys):  # the search has a filter of its own, which must not change the score scales
                with self.backend.read() as unfiltered:
                    return self._score_scales_within(options, unfiltered)
            else:
                score_scales = score_scales_for(self.model, options, view, self._sentences, sample)
            remembered = MeasuredScope(ref(keys), digest, score_scales)
            with self._measuring:  # the oldest makes room
                self._measured_within[scope] = remembered
                if len(self._measured_within) > SCOPES:
                    del self._measured_within[next(iter(self._measured_within))]
        return remembered.score_scales.model_copy(update={"documents": max(1, len(keys))})

    # -- writing ------------------------------------------------------------------------------------------

    def add(self, documents: Documents, *, embeddings: Any = None, progress: bool | None = None) -> list[str]:
        """Add documents, all or none; documents that the index already has change nothing. Returns the ids.

        An id with other content raises DuplicateIdError: use :meth:`upsert` to replace it. ``embeddings`` are vectors
        [N, d] of the documents by the model's encoder, an array or a tensor, for methods that need no token states.
        """
        stored = self._with_stored_ids(documents)
        apply_changes(self.model, self.backend, stored, embeddings, progress, replace=False, cutter=self._cutter)
        return [document.key for document in stored]

    def upsert(
        self, documents: Documents, *, delete: Iterable[str] = (), embeddings: Any = None, progress: bool | None = None
    ) -> Changes:
        """Add documents, and replace those whose id exists with other content; unchanged ones are not encoded again.

        The documents whose ids are in ``delete`` are deleted in the same transaction. ``embeddings`` as for
        :meth:`add`.
        """
        stored, deleted_ids = self._with_stored_ids(documents), check_ids(delete)
        settings: dict[str, Any] = {"replace": True, "cutter": self._cutter, "delete": deleted_ids}
        return apply_changes(self.model, self.backend, stored, embeddings, progress, **settings)

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

    def sync(
        self,
        data: Any,
        source: str | None = None,
        *,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        progress: bool | None = None,
    ) -> SyncReport:
        """Bring one named source up to date: changed documents are replaced, vanished ones are deleted.

        Documents of other sources, and documents added by :meth:`add`, are never changed. Equal passages are not
        encoded again, wherever they moved, and a renamed file costs nothing. Documents become visible in several
        transactions; a killed sync leaves no document half replaced, and the next sync continues from there.

        Args:
            data: A folder, whose files have the ids ``source/path``; a file; a loader of LangChain or a reader of
                LlamaIndex; or an iterable of documents, which keep their ids.
            source: Name of the source; by default the name of the folder or file, which must be the same path as in
                earlier syncs of that name.
            include: Patterns of files to read, as in ``.gitignore``; other files are skipped.
            exclude: Patterns of files and folders to skip.
            metadata: Metadata added to all documents of the source.
            progress: A progress bar; ``None`` shows it on a terminal.
        """
        name = source_name(data) if source is None else source
        if not isinstance(name, str) or not name.strip() or not is_unicode(name):
            raise InputError(f"a source needs a name in UTF-8, source='handbook' or --source; got {shown(name)}")
        file_options: dict[str, Any] = {"include": include, "exclude": exclude}
        origin = None
        if isinstance(data, str | Path) and not isinstance(self.backend, FilteredBackend):
            origin = str(Path(data).expanduser().absolute()).encode(errors="backslashreplace").decode()
            with self.backend.read() as view:
                known = view.note(f"{NOTE}{name}")
            if source is None and known not in (None, origin):
                raise InputError(
                    f"the source {shown(name)} of this index is {known}, not {origin}: give this one a name of its "
                    f"own, source='…' or --source, or source={shown(name)} if it was moved"
                )
        listing = list_source(data, name, metadata=metadata, progress=progress, **file_options)
        return self.sync_listing(name, listing, origin=origin, progress=progress)

    def add_questions(self, questions: RetrievalData | str | Path) -> int:
        """Add questions about passages as words by which the passages are found (as in doc2query).

        Vectors, sentences and what hits show stay as they are. A passage keeps its questions as long as its text stays,
        also where its document changes or moves; in a passage that was changed since it was asked about they are not
        added. Questions replace earlier ones of the same passage.

        Args:
            questions: What :func:`palmette.write_questions` (``palmette ask``) returned, or its folder: the questions
                of ``train`` and the passages that they are about.

        Returns:
            Number of passages of the index that have questions of these.
        """
        return add_questions(self.backend, questions_about(questions))

    def sync_listing(self, source: str, listing: Listing, **options: Any) -> SyncReport:
        """Bring a source up to date with a listing of it; options are those of :func:`sync_source`."""
        if self.backend.tenant is not None:
            listing = self._with_tenants(listing, self.backend.tenant)
        return sync_source(self.model, self.backend, self._cutter, source, listing, **options)

    def _with_tenants(self, listing: Listing, tenant: str) -> Listing:
        """Give the documents of a listing their stored ids; those that belong to no tenant are skipped.

        If none belongs to one, that raises: it is the caller who forgot them.
        """
        stored, prefixes, skipped = dict[str, Document](), set[str](), listing.skipped
        for id, document in listing.documents.items():
            try:
                (named,) = with_tenants([document], tenant)
            except InputError as error:
                skipped = [*skipped, (id, str(error))]
                if len(skipped) - len(listing.skipped) == len(listing.documents):
                    raise
                continue
            stored[named.key] = named
            prefixes.add(named.key.removesuffix(id))
        unread = {f"{prefix}{name}" for prefix in prefixes for name in listing.unread}
        return replace(listing, documents=stored, unread=unread, skipped=skipped)

    def compact(self) -> None:
        """Free the space of deleted and replaced documents."""
        self.backend.compact()

    # -- feedback -----------------------------------------------------------------------------------------

    def feedback(self, query: str, id: str, *, useful: bool, person: str | None = None) -> None:
        """Record whether a document was useful for a query; ``palmette refit`` learns from it.

        The name of the ``person`` is stored as a keyed hash, by which the person's votes can be deleted.
        """
        if not isinstance(useful, bool):
            raise InputError(f"useful must be True or False, got {shown(useful)}")
        if not str(query).strip():
            raise InputError(f"feedback: the query must not be empty, got {shown(query)}")
        log = self.feedback_log
        if self.get([id])[0] is None:
            raise NotFoundError(f"there is no document {shown(id)}: feedback is about documents of this index")
        log.add(query, id, useful, person=person)

    def record_search(self, query: str, ids: Sequence[str], *, person: str | None = None) -> bool:
        """Record a search of a person if recording is turned on; returns whether it is.

        ``Index.search`` records nothing by itself, since most searches are made by evaluations and programs. A search
        that there is no room to record is logged, since the search itself has its answer.
        """
        try:
            feedback = self.feedback_log
        except StoreError:  # a collection
            return False
        try:
            return feedback.record(query, ids, person=person)
        except StoreError as error:
            log.warning("a search was not recorded: %s", error)
            return False

    @property
    def feedback_log(self) -> FeedbackLog:
        """Log of votes and recorded searches: reads, exports and deletes them, and turns ``recording`` on."""
        backend, scope, prefix = self.backend, "", ""
        if isinstance(backend, FilteredBackend):
            scope, prefix, backend = str(backend.within), backend.prefix, backend.backend
        if not isinstance(backend, LocalBackend):
            raise StoreError("feedback is kept in the folder of an index; a collection has none")
        return FeedbackLog(Path(backend.path), scope, prefix)

    # -- reading ------------------------------------------------------------------------------------------

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

    # -- copies -------------------------------------------------------------------------------------------

    def copy_to(
        self, path: str | Path, *, model: Model | str | Path | None = None, progress: bool | None = None
    ) -> Self:
        """Copy all documents to a new folder or collection, compacted; they are encoded only by another ``model``."""
        path, new_model = absolute(path), self.model if model is None else as_model(model)
        encode = new_model.fingerprint != self.model.fingerprint
        copy_index(path, new_model, self.backend, encode=encode, progress=progress)
        copy = type(self).open(path, new_model, verify=False, engine=self.engine)
        note_score_scales(new_model, copy.backend)  # a part of the documents, or another model, has other score scales
        return copy

    def backup(self, path: str | Path) -> None:
        """Copy one consistent state of the files and the database to a new folder, while others read and write.

        The copy is an ordinary index. To copy the documents that a filter shows, or to change the model, use
        :meth:`copy_to`.
        """
        if not isinstance(self.backend, LocalBackend):
            raise StoreError("only a whole local index can be backed up: index.copy_to(…) copies this one")
        with new_index_folder(local_path(path)) as draft:
            self.backend.backup(draft)
            self.feedback_log.copy_to(draft)
            self.model.save_pretrained(draft / MODEL)

    @classmethod
    def restore(cls, backup: str | Path, path: str | Path) -> Self:
        """Check every document and file of a backup, copy it to a new folder, and open that."""
        with cls.open(backup, verify="full") as index:
            index.backup(path)
        return cls.open(path, verify=False)

    @classmethod
    def repair(
        cls, path: str | Path, out: str | Path, model: Model | None = None, *, progress: bool | None = None
    ) -> Repair:
        """Save the intact documents of a damaged index to a new one, and report the lost ones; ``path`` is only read.

        Documents with damaged arrays are encoded again, by the model inside or by a given ``model``.
        """
        if is_url(path) or is_url(out):
            raise StoreError("folders are repaired, not collections: their engine has snapshots of its own")
        report = repair_folder(local_path(path), local_path(out), model, progress)
        with cls.open(out, model, verify=False) as index:
            note_score_scales(index.model, index.backend)
        return report

    # -- life ---------------------------------------------------------------------------------------------

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
