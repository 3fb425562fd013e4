"""The second stage of a search: a reranker judges the hits whose order is open, as a further piece of evidence.

    open      the first 20 hits, as far as they lie within 2 log-odds of the best; fewer than two are not judged
    z         an open hit's score less the mean of theirs, over their standard deviation; 0 for other hits
    log-odds  those of the first stage + weight · z − c

c leaves the best hit the log-odds that the best one had before: a reranker says which hit is relevant, not whether one
is. A question that no document answers stays below a threshold, and a calibrated probability of a first hit holds.

The shipped weight decides between hits that are nearly even: without judgements nobody knows whether a reranker errs
where the first stage errs. One learned from them (:func:`palmette.learning.reranking.weigh_reranker`) is often larger.

Example: hits of log-odds 1.0, .6 and −2.1 have scores of 3 and 7 (the third is not open). z is −1 and 1; with a weight
of 1 the sums are 0, 1.6 and −2.1, and c = .6: the second comes first with 1.0, before −.6 and −2.7.
"""

from __future__ import annotations

import hashlib
import threading
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from palmette.arrays import Floats, Keys
from palmette.config import check_range
from palmette.errors import ConfigError, shown
from palmette.machine.telemetry import span
from palmette.machine.threads import Renewed
from palmette.ranking.rerankers import checked_scores, scorer_of
from palmette.search.plan import Candidates
from palmette.store.protocols import View

WEIGHT = 0.02
"""Shipped weight: the largest that cost no weak reranker more than .002 of nDCG@10 on dev questions."""
HITS = 20
"""Largest number of hits of a question that are judged."""
WITHIN = 2.0
"""Distance in log-odds from the best hit up to which a hit is judged."""
OPTIONS = ("weight", "hits", "within", "seconds")
"""Options of a reranker."""
MOST_KEPT = 50_000
"""Scores that a reranker keeps, by question and text."""
MOST_LATE = 4
"""Late judgements that may still run before further ones are not begun."""

RERANK = "rerank"
"""Name of the evidence of a hit: the log-odds that the reranker adds; NaN if the question was not judged."""
RERANK_SCORE = "rerank_score"
"""Name of the evidence of a hit: the reranker's own score; NaN if the hit was not judged."""

Rerank = Any
"""A :class:`Reranker`, or what one is made of; ``None`` for the index's own, ``False`` for none."""
_notes: ContextVar[dict[str, str] | None] = ContextVar("notes", default=None)


class NotJudged(Exception):
    """A reranker failed, was late, or gave something other than a number for each text."""


class _Memory(Renewed):
    """Scores of a reranker's model."""

    def __init__(self) -> None:
        self.scores: OrderedDict[bytes, float] = OrderedDict()
        super().__init__()

    def renew(self) -> None:
        """Make the locks: of what is kept, and of the model, which one thread calls at a time."""
        self.lock, self.turn = threading.Lock(), threading.Lock()


_memories: dict[int, _Memory] = {}


def _memory_of(model: Any) -> _Memory:
    """Return the memory of a model for as long as that lives, so that a search may be given the model itself."""
    key = id(model)
    if key not in _memories:
        try:
            weakref.finalize(model, _memories.pop, key, None)
        except TypeError:  # a name, or an object without weak references
            return _Memory()
        _memories[key] = _Memory()
    return _memories[key]


class Reranker(Renewed):
    """A reranker, and how much its judgement counts in a search; scores are kept by question and text.

    ``index.search(question, rerank=reranker)``, or ``index.reranker = reranker`` for all searches of an index.

    Args:
        model: A ``CrossEncoder``, a reranker of LangChain or LlamaIndex, a function of a question and texts that
            returns a score for each text, ``"cross-encoder:FOLDER_OR_NAME"`` or ``"rerank:MODEL@https://host/v1"``
            (its key in PALMETTE_RERANK_KEY).
        weight: Log-odds of a score one standard deviation above the mean of a question's open hits. The shipped one
            gains little and does no harm; :func:`palmette.learning.reranking.weigh_reranker` learns one.
        hits: Largest number of hits of a question that are judged.
        within: Distance in log-odds from the best hit up to which a hit is judged: ``inf`` judges all, 1 asks rarely.
        seconds: Seconds that a question's judgement may take; ``None`` for no limit. A late one is kept for the next
            time.
    """

    def __init__(
        self,
        model: Any,
        *,
        weight: float = WEIGHT,
        hits: int = HITS,
        within: float = WITHIN,
        seconds: float | None = None,
    ) -> None:
        if None in (weight, hits, within):
            raise ConfigError(f"Reranker: weight, hits and within must be numbers, got {weight}, {hits} and {within}")
        check_range("Reranker", "weight", weight, 0, 100)
        check_range("Reranker", "hits", hits, 2, 1000, whole=True)
        check_range("Reranker", "within", within, 0)
        check_range("Reranker", "seconds", seconds, 1e-3)
        self.model, self._scorer = model, scorer_of(model)
        self.weight, self.hits, self.within, self.seconds = float(weight), int(hits), float(within), seconds
        self._memory = _memory_of(self.model)
        super().__init__()

    def renew(self) -> None:
        """Make the locks."""
        self._lock = threading.Lock()
        self._late: set[Future[dict[bytes, float]]] = set()

    @property
    def name(self) -> str:
        """Name of the model."""
        return self._scorer.name

    def options(self) -> dict[str, Any]:
        """Options of the constructor, besides the model."""
        return {name: getattr(self, name) for name in OPTIONS}

    def to_dict(self) -> dict[str, Any] | None:
        """JSON that :func:`as_reranker` reads; ``None`` for a model that has no name to be loaded by."""
        return {"model": self.model, **self.options()} if isinstance(self.model, str) else None

    def replace(self, **changes: Any) -> Reranker:
        """Copy with other options; model and kept scores are the same."""
        changed = Reranker(self._scorer, **{**self.options(), **changes})
        changed.model, changed._memory = self.model, self._memory
        return changed

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Reranker, **self.options()), (self.model,)

    def __repr__(self) -> str:
        return f"<Reranker {self.name}: weight {self.weight:g}>"

    def judge(self, question: str, texts: Sequence[str]) -> list[float]:
        """Return a score for each text, from a kept judgement where there is one.

        Raises:
            NotJudged: There are no scores in time.
        """
        # a score that depends on the other texts is kept with all of them
        beside = b"" if self._scorer.pointwise else _digest(question, *texts)
        keys = [_digest(question, text) + beside for text in texts]
        with self._memory.lock:
            known = {key: self._memory.scores[key] for key in keys if key in self._memory.scores}
        fresh = {key: text for key, text in zip(keys, texts, strict=True) if key not in known}
        if fresh:
            known |= self._in_time(question, fresh)
        return [known[key] for key in keys]

    def added(self, logits: Floats, scores: Floats) -> tuple[Floats, float]:
        """Return the log-odds that scores add to a question's open hits, given those of the first stage, and to others.

        Equal scores add nothing.
        """
        deviation = float(scores.std())
        if deviation <= 1e-9 * max(1.0, float(np.abs(scores).max())):
            return np.zeros(len(scores), np.float32), 0.0
        added = self.weight * (scores - scores.mean()) / deviation
        correction = float(logits.max() - (logits + added).max())
        return np.asarray(np.round(added + correction, 6) + 0.0, np.float32), correction

    def _in_time(self, question: str, texts: Mapping[bytes, str]) -> dict[bytes, float]:
        """Judge texts by key, in a thread if the time is limited."""
        if self.seconds is None:
            return self._score(question, texts)
        with self._lock:
            if len(self._late) >= MOST_LATE:
                raise NotJudged(f"{self.name} is still busy with {len(self._late)} earlier questions")
        outcome: Future[dict[bytes, float]] = Future()

        def work() -> None:
            try:
                outcome.set_result(self._score(question, texts))
            except BaseException as error:
                outcome.set_exception(error)
            with self._lock:
                self._late.discard(outcome)

        threading.Thread(target=work, name="palmette-rerank", daemon=True).start()
        wait([outcome], self.seconds)
        with self._lock:
            if not outcome.done():
                self._late.add(outcome)
                raise NotJudged(f"{self.name} gave no scores within {self.seconds:g} s")
        return outcome.result()

    def _score(self, question: str, texts: Mapping[bytes, str]) -> dict[bytes, float]:
        """Score texts by key, and keep the scores."""
        try:
            with nullcontext() if self._scorer.parallel else self._memory.turn:
                given = self._scorer.score(question, list(texts.values()))
            scores = dict(zip(texts, checked_scores(given, len(texts), self.name), strict=True))
        except Exception as error:  # of the user's own code, or of a library
            raise NotJudged(f"{self.name} failed: {type(error).__name__}: {str(error)[:300]}") from error
        with self._memory.lock:
            self._memory.scores |= scores
            while len(self._memory.scores) > MOST_KEPT:
                self._memory.scores.popitem(last=False)
        return scores


def _digest(*texts: str) -> bytes:
    """Digest texts, so that no others have the same."""
    content = "".join(f"{len(text)}\0{text}" for text in texts)
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).digest()[:16]


def as_reranker(value: Any) -> Reranker:
    """Return a reranker: itself, one of a name or of a mapping of ``model`` and options, or one of a model.

    A name, or a mapping of one, is loaded once.
    """
    if isinstance(value, Reranker):
        return value
    if isinstance(value, str):
        return _named(value, ())
    if isinstance(value, Mapping):
        options = dict(value)
        if strange := options.keys() - {"model", *OPTIONS}:
            raise ConfigError(f"a reranker has no option {min(map(str, strange))!r}: write {_EXAMPLE}")
        model = options.pop("model", None)
        if model is None:
            raise ConfigError(f"a reranker needs a model: write {_EXAMPLE}, got {shown(value)}")
        usable = isinstance(model, str) and all(isinstance(one, int | float | None) for one in options.values())
        return _named(model, tuple(sorted(options.items()))) if usable else Reranker(model, **options)
    return Reranker(value)


_EXAMPLE = '{"model": "rerank:MODEL@https://host/v1", "weight": 1, "seconds": 0.5}'


@lru_cache(16)
def _named(name: str, options: tuple[tuple[str, Any], ...]) -> Reranker:
    return Reranker(name, **dict(options))


@contextmanager
def noting() -> Iterator[dict[str, str]]:
    """Collect why questions of searches in this block have hits of the first stage only, by question."""
    notes: dict[str, str] = {}
    token = _notes.set(notes)
    try:
        yield notes
    finally:
        _notes.reset(token)


class SecondStage:
    """The judgements of one search, by question."""

    def __init__(self, reranker: Reranker, questions: Sequence[str]) -> None:
        self.reranker, self.questions = reranker, questions
        self._judged: dict[int, dict[int, tuple[float, float]]] = {}
        """Of each question, by key: what the reranker adds, and its score; what it adds to others by −1."""

    def judge(self, view: View, row: int, keys: Keys, logits: Floats) -> None:
        """Judge the open hits of a question, given best first; a search that ranks again keeps the first judgement."""
        if row in self._judged:
            return
        self._judged[row] = {}
        if not len(keys) or logits[0] == -np.inf:
            return
        chosen = np.flatnonzero(logits[: self.reranker.hits] >= logits[0] - self.reranker.within)
        if len(chosen) < 2:
            return
        question, opened = self.questions[row], keys[chosen].tolist()
        texts = [document.content for document in view.documents(opened)]
        try:
            with span("rerank"):
                scores = np.array(self.reranker.judge(question, texts))
        except NotJudged as error:
            message = f"{error}; these are the hits of the first stage"
            if (notes := _notes.get()) is not None:
                notes[question] = message
            warnings.warn(message, stacklevel=2)
            return
        added, elsewhere = self.reranker.added(logits[chosen], scores)
        facts = zip(added.tolist(), scores.tolist(), strict=True)
        self._judged[row] = {-1: (elsewhere, np.nan), **dict(zip(opened, facts, strict=True))}

    def apply(self, row: int, candidates: Candidates) -> Candidates:
        """Add the judgement of a question to the log-odds of its candidates [1, n]."""
        judged = self._judged.get(row, {})
        unknown = judged.get(-1, (np.nan, np.nan))
        facts = np.array([judged.get(key, unknown) for key in candidates.keys[0].tolist()], np.float32).reshape(-1, 2)
        evidence = {**candidates.evidence, RERANK: facts[None, :, 0], RERANK_SCORE: facts[None, :, 1]}
        scores = candidates.scores + np.nan_to_num(facts[:, 0])
        return replace(candidates, scores=scores.astype(np.float32), evidence=evidence)
