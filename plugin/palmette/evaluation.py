"""Measure a model on judged queries, what it has to beat beside it, and what a reader makes of what they find."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from palmette.answers import answer_accuracy, answer_rank, exact_match, f1
from palmette.baselines import BM25, EncoderBaseline
from palmette.data import RetrievalData, Split, load_data
from palmette.errors import InputError
from palmette.index import Index
from palmette.index.folder import check_count
from palmette.lexical import Lexical
from palmette.metrics import score_run
from palmette.model import Model
from palmette.reader import Asked, Reader, load_reading
from palmette.report import Report, Row
from palmette.store.filters import Filter
from palmette.types import Document

__all__ = ["KS", "Report", "Row", "evaluate", "evaluate_index"]

KS = (1, 10, 100)
TIMED_QUERIES = 100
"""Queries asked one by one, for the latency of a single question."""
TOGETHER = 64
"""Questions that a reader answers at a time."""


Search = Callable[[Sequence[str], int], tuple[list[list[str]], float]]
"""Queries and k → ids per query, best first, and the share of the documents that was compared."""


@dataclass(frozen=True)
class _Reading:
    """A reader, and the questions it answers from the first documents that a system finds.

    Attributes:
        asked: What is known of each question's answer, in the order they are asked in.
        documents: By id.
        passages: How many documents are read.
    """

    reader: Reader
    asked: Sequence[Asked]
    documents: Mapping[str, Document]
    passages: int

    def scores(self, found: Sequence[Sequence[str]]) -> dict[str, float]:
        """How often documents hold an accepted answer, and how well the reader's answers agree with those."""
        ranks = [
            answer_rank((self.documents[id].content for id in ids), one.answers)
            for one, ids in zip(self.asked, found, strict=True)
            if one.answers
        ]
        scores = answer_accuracy(ranks, KS)
        said: list[str] = []
        for start in range(0, len(self.asked), TOGETHER):
            questions = [one.question for one in self.asked[start : start + TOGETHER]]
            passages = [
                [self.documents[id] for id in ids[: self.passages]] for ids in found[start : start + TOGETHER]
            ]
            said += [answer.text for answer in self.reader.answer(questions, passages)]
        accepted = [one.answers or () for one in self.asked]
        pairs = list(zip(said, accepted, strict=True))
        return {
            **scores,
            "em": float(np.mean([exact_match(*pair) for pair in pairs])),
            "f1": float(np.mean([f1(*pair) for pair in pairs])),
            "silent": float(np.mean([not text for text in said])),
        }


def evaluate(
    model: Model,
    data: Any,
    *,
    split: str = "test",
    lexical: Lexical = 0.0,
    baselines: bool = False,
    reader: Reader | None = None,
    passages: int = 5,
    progress: bool | None = None,
    **options: Any,
) -> Report:
    """Index a data set's corpus with a model and measure its search on the judged queries of a split.

    Args:
        model: What to measure.
        data: Anything :func:`palmette.load_data` reads, with judgements.
        split: Which of them.
        lexical: How much words count beside the method; by default the method is measured alone.
        baselines: Put the untrained encoder (exact search) and BM25 beside it.
        reader: Answers every question from what each system finds: ``data`` is then anything that
            :func:`palmette.reader.load_reading` reads, and rows have ``accuracy@n`` (an accepted answer is in the first
            n documents), ``em`` and ``f1`` of the reader's answers, and the share for which it keeps ``silent``. To a
            question without accepted answers silence is right.
        passages: How many documents the reader is given.
        progress: Progress bars; ``None`` shows them on a terminal.
        options: Search options of the method, such as ``level=``.
    """
    model.search_options(options)  # complain before an hour of encoding
    reading = None
    if reader is None:
        loaded = load_data(data)
        judged = _judged(loaded, split)
    else:
        loaded, judged, reading = _to_read(reader, data, split, check_count("passages", passages))
    systems: list[tuple[str, Callable[[], Search]]] = [
        (
            _label(model, {**_named(lexical), **options}),
            lambda: _model_search(model, loaded, progress, lexical, options),
        )
    ]
    if baselines:
        systems.append((f"encoder {model.encoder.name}", lambda: _encoder_search(model, loaded, progress)))
        systems.append(("BM25", lambda: _bm25_search(loaded)))
    hidden = None if progress is None else not progress
    rows = [
        _measure(name, make, judged, reading)
        for name, make in tqdm(systems, desc="Evaluating", unit="system", disable=hidden)
    ]
    return Report(loaded.name, split, len(loaded.corpus), len(judged.queries), rows)


def evaluate_index(
    index: Index,
    queries: Mapping[str, str],
    qrels: Mapping[str, Mapping[str, int]],
    *,
    filter: Filter | None = None,
    lexical: Lexical = 0.0,
    **options: Any,
) -> Row:
    """Measure an index as it stands, on queries and judgements by document id; see :func:`evaluate`."""
    asked = {id: text for id, text in queries.items() if id in qrels}
    if not asked:
        raise InputError(f"none of the {len(queries)} queries is judged: qrels name {list(qrels)[:3]}")

    judged = Split("queries", asked, {id: dict(qrels[id]) for id in asked})
    return _measure(
        _label(index.model, {**_named(lexical), **options}),
        lambda: _ranker(index, {"filter": filter, "lexical": lexical, **options}),
        judged,
    )


def _judged(data: RetrievalData, split: str) -> Split:
    judged = data.split(split)
    if not judged.queries:
        raise InputError(f"{data.name}: split {split!r} has no queries")
    return judged


def _to_read(reader: Reader, data: Any, split: str, passages: int) -> tuple[RetrievalData, Split, _Reading]:
    """The passages as documents, the questions as queries (those without an answer are judged by no document)."""
    read = load_reading(data)
    asked = read.split(split)
    if lost := sum(one.answers is None for one in asked):
        raise InputError(
            f"{read.name}: {lost} of {len(asked)} {split} questions do not say what answers them: give every one "
            "'answers', or evaluate without reader="
        )
    queries = {str(n): one.question for n, one in enumerate(asked)}
    qrels = {
        str(n): {read.passages[row].key: 1 for row in one.passages}
        for n, one in enumerate(asked)
        if one.answers and one.passages
    }
    if not qrels:
        raise InputError(f"{read.name}: no {split} question has an answer in a passage that is known")
    loaded = RetrievalData(read.name, read.passages, queries, {split: qrels})
    documents = {document.key: document for document in read.passages}
    return loaded, Split(split, queries, qrels), _Reading(reader, asked, documents, passages)


def _label(model: Model, options: Mapping[str, Any]) -> str:
    chosen = ", ".join(f"{name}={value}" for name, value in options.items())
    return f"{model.method} ({chosen})" if chosen else model.method


def _named(lexical: Lexical) -> dict[str, Any]:
    """For the label: nothing where the method is alone."""
    return {} if lexical == 0 else {"lexical": lexical}


def _model_search(
    model: Model, data: RetrievalData, progress: bool | None, lexical: Lexical, options: Mapping[str, Any]
) -> Search:
    index = Index.in_memory(model)
    index.add(data.corpus, progress=progress)
    return _ranker(index, {"lexical": lexical, **options})


def _ranker(index: Index, options: Mapping[str, Any]) -> Search:
    def search(texts: Sequence[str], k: int) -> tuple[list[list[str]], float]:
        ranking = index.rank(texts, k, **options)
        return ranking.ids, ranking.visited

    return search


def _encoder_search(model: Model, data: RetrievalData, progress: bool | None) -> Search:
    baseline = EncoderBaseline(model.encoder, data.corpus, progress=progress)
    return lambda texts, k: (baseline.search(texts, k).ids, 1.0)


def _bm25_search(data: RetrievalData) -> Search:
    baseline = BM25(data.corpus)
    return lambda texts, k: (baseline.search(texts, k).ids, 1.0)


def _measure(name: str, make: Callable[[], Search], judged: Split, reading: _Reading | None = None) -> Row:
    """Prepare, ask all queries at once for quality, and some one by one for latency."""
    begun = time.perf_counter()
    search = make()
    prepared = time.perf_counter() - begun
    texts = list(judged.queries.values())
    found, visited = search(texts, max(*KS, reading.passages if reading else 0))
    times = []
    for text in texts[:TIMED_QUERIES]:
        begun = time.perf_counter()
        search([text], 10)
        times.append(1000 * (time.perf_counter() - begun))
    run = dict(zip(judged.queries, found, strict=True))
    scores = score_run({id: run[id] for id in judged.qrels}, judged.qrels, ks=KS)
    if reading is not None:
        scores = {**scores, **reading.scores(found)}
    percentiles = {f"p{p}": float(np.percentile(times, p)) for p in (50, 95, 99)}
    return Row(name, scores, percentiles, prepared, visited)
