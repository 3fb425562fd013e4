"""Quality and latency of models and readers on judged queries, beside BM25 and the untrained encoder."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from palmette.arrays import Floats, best
from palmette.config import check_count, check_kind
from palmette.data import RetrievalData, Split, load_data
from palmette.data.metrics import KS, answer_accuracy, answer_rank, exact_match, f1, score_run
from palmette.errors import InputError, MissingExtraError, shown
from palmette.hub.report import Report, Row
from palmette.index import Index
from palmette.machine.progress import progress_bar
from palmette.methods.base import Model
from palmette.methods.space import SpaceModel
from palmette.ranking.score import Lexical
from palmette.reader import Example, Reader, load_reading
from palmette.store.filters import Filter
from palmette.types import Document

__all__ = ["BM25", "Report", "Row", "evaluate", "evaluate_index"]

TIMED_QUERIES = 100
"""Queries asked one by one, for the latency of a single question."""
READER_BATCH = 64
"""Questions that a reader answers at a time."""
BASELINE_K1 = 1.2
"""Lucene's default: saturation of repeated words."""
B = 0.75
"""Lucene's default: influence of a document's length."""

System = Callable[[Sequence[str], int], tuple[list[list[str]], float]]
"""Queries and k → ids per query, best first, and the share of the documents that was compared."""


class BM25:
    """BM25 (Lucene's formula, k1 = 1.2, b = 0.75) over English stems, by ``bm25s``.

    Args:
        documents: Searched by text: in BEIR folders title and text.

    Raises:
        MissingExtraError: ``bm25s`` or ``PyStemmer`` is not installed.
    """

    def __init__(self, documents: Sequence[Document]) -> None:
        if not documents:
            raise InputError("BM25: there are no documents; give at least one")
        try:
            import bm25s
            import Stemmer
        except ImportError as error:
            raise MissingExtraError(error.name or "bm25s", "baselines", "The BM25 baseline") from error
        self.ids = [document.key for document in documents]
        stemmer = Stemmer.Stemmer("english")
        self._words: Callable[..., list[list[str]]] = partial(
            bm25s.tokenize, stopwords=[], stemmer=stemmer, return_ids=False, leave=False
        )
        self._index = bm25s.BM25(method="lucene", k1=BASELINE_K1, b=B)
        shown = sys.stderr.isatty()
        words = self._words([document.content for document in documents], show_progress=shown)
        self._index.index(words, show_progress=shown, leave_progress=False)

    def scores(self, queries: Sequence[str]) -> Iterator[Floats]:
        """[N] scores of the documents, for each query."""
        if isinstance(queries, str):
            raise InputError(f"queries must be a list of str, got one str: {shown(queries)}. Put it in a list: [query]")
        for words in self._words(list(queries), show_progress=False):
            yield self._index.get_scores(words) if words else np.zeros(len(self.ids), np.float32)

    def search(self, queries: Sequence[str], k: int = 10) -> list[list[str]]:
        """Ids of the ``k`` best documents for each query; all of them when there are fewer."""
        check_count("k", k)
        return [[self.ids[row] for row in best(scores, k).tolist()] for scores in self.scores(queries)]


@dataclass(frozen=True)
class _Reading:
    """A reader, and the questions it answers from the first documents that a system finds."""

    reader: Reader
    questions: Sequence[Example]  # in the order of the queries
    documents: Mapping[str, Document]
    passages: int  # documents read

    def scores(self, rankings: Sequence[Sequence[str]]) -> dict[str, float]:
        """Share of rankings that hold an accepted answer, and agreement of the reader's answers with those."""
        ranks = [
            answer_rank((self.documents[id].content for id in ids), example.answers)
            for example, ids in zip(self.questions, rankings, strict=True)
            if example.answers
        ]
        texts: list[str] = []
        for start in range(0, len(self.questions), READER_BATCH):
            part = slice(start, start + READER_BATCH)
            questions = [example.question for example in self.questions[part]]
            passages = [[self.documents[id] for id in ids[: self.passages]] for ids in rankings[part]]
            texts += [answer.text for answer in self.reader.answer(questions, passages)]
        pairs = [(text, example.answers or ()) for text, example in zip(texts, self.questions, strict=True)]
        return {
            **answer_accuracy(ranks, KS),
            "em": float(np.mean([exact_match(*pair) for pair in pairs])),
            "f1": float(np.mean([f1(*pair) for pair in pairs])),
            "silent": float(np.mean([not text for text in texts])),
        }


def evaluate(
    model: Model, data: Any, *, split: str = "test", lexical: Lexical = 0.0, sentences: bool = False,
    baselines: bool = False, reader: Reader | None = None, passages: int = 5, progress: bool | None = None,
    **options: Any,
) -> Report:  # fmt: skip
    """Index a data set's corpus with a model and measure its search on the judged queries of a split.

    Args:
        model: The model to measure.
        data: Anything :func:`palmette.load_data` reads, with judgements.
        split: Whose judgements.
        lexical: Weight of words beside meaning; by default the method is measured alone.
        sentences: Whether best sentences count beside the method's score.
        baselines: Put beside it the default search (words, sentences) before training and with the model, the untrained
            encoder (exact search), and BM25.
        reader: Answers every question from what each system finds: ``data`` is then anything that
            :func:`palmette.reader.load_reading` reads, and rows have ``accuracy@n`` (an accepted answer is in the first
            n documents), ``em`` and ``f1`` of the reader's answers, and the share for which it keeps ``silent``. To a
            question without accepted answers silence is right.
        passages: Number of documents the reader is given.
        progress: Progress bars; ``None`` shows them on a terminal.
        options: Search options of the method, such as ``level=``.
    """
    model.search_options(options)  # complain before an hour of encoding
    reading = None
    if reader is None:
        loaded = load_data(data)
        judged = loaded.split(split)
        if not judged.queries:
            raise InputError(f"{loaded.name}: split {split!r} has no queries")
    else:
        loaded, judged, reading = _reading(reader, data, split, check_count("passages", passages))

    @cache
    def indexed(searched: Model) -> Index:
        index = Index.in_memory(searched, sentences=sentences or baselines, passages=None)
        index.add(loaded.corpus, progress=progress)
        return index

    def search(searched: Model, **settings: Any) -> Callable[[], System]:
        return lambda: partial(_index_search, indexed(searched), **settings)

    alone = {"lexical": lexical, "sentences": sentences, **options}
    systems = {_label(model, lexical, sentences, options): search(model, **alone)}
    if baselines:
        untrained, whole = SpaceModel.untrained(model.encoder.plain), {"lexical": "auto", "sentences": True}
        systems[_label(model, "auto", True, options)] = search(model, **whole, **options)
        systems["untrained (lexical=auto, sentences=True)"] = search(untrained, **whole)
        systems[f"encoder {model.encoder.name}"] = search(untrained, lexical=0, sentences=False)
        systems["BM25"] = partial(_bm25, loaded.corpus)
    bar = progress_bar(progress, systems.items(), desc="Evaluating", unit="system")
    rows = [_measure(name, prepare, judged, reading) for name, prepare in bar]
    return Report(loaded.name, split, len(loaded.corpus), len(judged.queries), rows)


def evaluate_index(
    index: Index, queries: Mapping[str, str], qrels: Mapping[str, Mapping[str, int]], *,
    filter: Filter | None = None, lexical: Lexical = 0.0, sentences: bool = False, **options: Any,
) -> Row:  # fmt: skip
    """Measure an index as it stands, on queries and judgements by document id; see :func:`evaluate`."""
    for name, mapping in (("queries", queries), ("qrels", qrels)):
        check_kind(name, mapping, Mapping, "a mapping by query id")
    for judged in qrels.values():
        check_kind("judgements", judged, Mapping, "a mapping of document id → grade")
    judged_queries = {id: text for id, text in queries.items() if id in qrels}
    if not judged_queries:
        raise InputError(f"none of the {len(queries)} queries is judged: qrels name {list(qrels)[:3]}")
    search = partial(_index_search, index, filter=filter, lexical=lexical, sentences=sentences, **options)
    split = Split("queries", judged_queries, {id: dict(qrels[id]) for id in judged_queries})
    return _measure(_label(index.model, lexical, sentences, options), lambda: search, split)


def _reading(reader: Reader, data: Any, split: str, passages: int) -> tuple[RetrievalData, Split, _Reading]:
    """Passages as documents and questions as queries; those without an answer are judged by no document."""
    read = load_reading(data)
    examples = read.split(split)
    if lost := sum(example.answers is None for example in examples):
        raise InputError(
            f"{read.name}: {lost} of {len(examples)} {split} questions do not say what answers them: give every one "
            "'answers', or evaluate without reader="
        )
    queries = {str(n): example.question for n, example in enumerate(examples)}
    qrels = {
        str(n): {read.passages[row].key: 1 for row in example.passages}
        for n, example in enumerate(examples)
        if example.answers and example.passages
    }
    if not qrels:
        raise InputError(f"{read.name}: no {split} question has an answer in a passage that is known")
    loaded = RetrievalData(read.name, read.passages, queries, {split: qrels})
    documents = {document.key: document for document in read.passages}
    return loaded, Split(split, queries, qrels), _Reading(reader, examples, documents, passages)


def _label(model: Model, lexical: Lexical, sentences: bool, options: Mapping[str, Any]) -> str:
    words, means = {} if lexical == 0 else {"lexical": lexical}, {"sentences": True} if sentences else {}
    chosen = ", ".join(f"{name}={value}" for name, value in {**words, **options, **means}.items())
    return f"{model.method} ({chosen})" if chosen else model.method


def _bm25(documents: Sequence[Document]) -> System:
    baseline = BM25(documents)
    return lambda texts, k: (baseline.search(texts, k), 1.0)


def _index_search(index: Index, texts: Sequence[str], k: int, **options: Any) -> tuple[list[list[str]], float]:
    ranking = index.rank(texts, k, **options)
    return ranking.ids, ranking.visited


def _measure(name: str, prepare: Callable[[], System], judged: Split, reading: _Reading | None = None) -> Row:
    """Prepare, ask all queries at once for quality, and some one by one for latency."""
    begun = time.perf_counter()
    search = prepare()
    prepared = time.perf_counter() - begun
    texts = list(judged.queries.values())
    rankings, visited = search(texts, max(*KS, reading.passages if reading else 0))
    times = []
    for text in texts[:TIMED_QUERIES]:
        begun = time.perf_counter()
        search([text], 10)
        times.append(1000 * (time.perf_counter() - begun))
    run = dict(zip(judged.queries, rankings, strict=True))
    scores = score_run({id: run[id] for id in judged.qrels}, judged.qrels, ks=KS)
    scores |= reading.scores(rankings) if reading else {}
    percentiles = {f"p{p}": float(np.percentile(times, p)) for p in (50, 95, 99)}
    return Row(name, scores, percentiles, prepared, visited)
