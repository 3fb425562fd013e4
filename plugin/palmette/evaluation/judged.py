"""Quality and latency of models on judged queries, beside BM25 and the untrained encoder."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from palmette.arrays import Floats, best
from palmette.config import check_count, check_kind
from palmette.data import Split, load_data
from palmette.data.metrics import KS, score_run
from palmette.errors import InputError, MissingExtraError, shown
from palmette.hub.report import Report, Row
from palmette.index import Index
from palmette.machine.progress import progress_bar
from palmette.methods.base import Model
from palmette.methods.space import SpaceModel
from palmette.ranking.score import Lexical
from palmette.store.filters import Filter
from palmette.types import Document

__all__ = ["BM25", "Report", "Row", "evaluate", "evaluate_index"]

TIMED_QUERIES = 100
"""Queries asked one by one, for the latency of a single question."""
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


def evaluate(
    model: Model, data: Any, *, split: str = "test", lexical: Lexical = 0.0, sentences: bool = False,
    baselines: bool = False, progress: bool | None = None, **options: Any,
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
        progress: Progress bars; ``None`` shows them on a terminal.
        options: Search options of the method, such as ``level=``.
    """
    model.search_options(options)  # complain before an hour of encoding
    loaded = load_data(data)
    judged = loaded.split(split)
    if not judged.queries:
        raise InputError(f"{loaded.name}: split {split!r} has no queries")

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
    rows = [_measure(name, prepare, judged) for name, prepare in bar]
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


def _measure(name: str, prepare: Callable[[], System], judged: Split) -> Row:
    """Prepare, ask all queries at once for quality, and some one by one for latency."""
    begun = time.perf_counter()
    search = prepare()
    prepared = time.perf_counter() - begun
    texts = list(judged.queries.values())
    rankings, visited = search(texts, max(KS))
    times = []
    for text in texts[:TIMED_QUERIES]:
        begun = time.perf_counter()
        search([text], 10)
        times.append(1000 * (time.perf_counter() - begun))
    run = dict(zip(judged.queries, rankings, strict=True))
    scores = score_run({id: run[id] for id in judged.qrels}, judged.qrels, ks=KS)
    percentiles = {f"p{p}": float(np.percentile(times, p)) for p in (50, 95, 99)}
    return Row(name, scores, percentiles, prepared, visited)
