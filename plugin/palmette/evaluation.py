"""Measure a model on judged queries, and what it has to beat beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from palmette.baselines import BM25, EncoderBaseline
from palmette.data import RetrievalData, Split, load_data
from palmette.errors import InputError
from palmette.index import Index
from palmette.lexical import Lexical
from palmette.metrics import score_run
from palmette.model import Model
from palmette.report import Report, Row
from palmette.store.filters import Filter

__all__ = ["KS", "Report", "Row", "evaluate", "evaluate_index"]

KS = (1, 10, 100)
TIMED_QUERIES = 100
"""Queries asked one by one, for the latency of a single question."""


Search = Callable[[Sequence[str], int], tuple[list[list[str]], float]]
"""Queries and k → ids per query, best first, and the share of the documents that was compared."""


def evaluate(
    model: Model,
    data: Any,
    *,
    split: str = "test",
    lexical: Lexical = 0.0,
    baselines: bool = False,
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
        progress: Progress bars; ``None`` shows them on a terminal.
        options: Search options of the method, such as ``level=``.
    """
    model.options(options)  # complain before an hour of encoding
    loaded = load_data(data)
    judged = _judged(loaded, split)
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
        _measure(name, make, judged)
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


def _measure(name: str, make: Callable[[], Search], judged: Split) -> Row:
    """Prepare, ask all queries at once for quality, and some one by one for latency."""
    begun = time.perf_counter()
    search = make()
    prepared = time.perf_counter() - begun
    texts = list(judged.queries.values())
    found, visited = search(texts, max(KS))
    times = []
    for text in texts[:TIMED_QUERIES]:
        begun = time.perf_counter()
        search([text], 10)
        times.append(1000 * (time.perf_counter() - begun))
    scores = score_run(dict(zip(judged.queries, found, strict=True)), judged.qrels, ks=KS)
    percentiles = {f"p{p}": float(np.percentile(times, p)) for p in (50, 95, 99)}
    return Row(name, scores, percentiles, prepared, visited)
