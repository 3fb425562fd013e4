"""What is in an index? Its topics, each with words, counts and typical passages, without a language model.

Stored vectors of passages (a sample of a large index) are clustered by k-means, whatever the method. A topic's words
are those that it has more often than the rest (:mod:`palmette.lexical.terms`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from html import escape
from typing import Any

import numpy as np

from palmette.arrays import Floats, Keys, Rows, evenly_spaced, unit_rows
from palmette.errors import ConfigError, shown
from palmette.index.folder import check_count
from palmette.lexical.terms import add_counts, count_terms, divergence, top_terms
from palmette.model import Model
from palmette.ranking.boost import read_date
from palmette.search.plan import ArraySpec, View
from palmette.store.filters import flatten

SAMPLE = 10_000
"""Passages that are clustered, and whose words are read."""
CHUNK = 8192
"""Passages whose vectors are read at a time."""
WORDS = 8
"""Words and word pairs of a topic."""
TYPICAL = 3
"""Typical passages of a topic, each of another document."""
LEAST = 3
"""Passages per topic: few documents have fewer topics."""
SHOWN = 200
"""Characters of a typical passage."""
ASKED = 100
"""Passages that are searched for a question."""
RELEVANT = 0.2
"""Probability from which on a passage says something about a question."""
VECTORS = ("float32", "float16", "int8")
"""Dtypes of stored vectors; leaf probabilities and numbers of leaves have others."""
SEED = 0
"""Seed of k-means: the same documents have the same topics."""


@dataclass(frozen=True)
class TypicalPassage:
    """A passage near the centre of a topic."""

    id: str
    """Id of its document."""
    text: str
    """How the passage begins, in one line."""
    first_line: int
    last_line: int


@dataclass(frozen=True)
class Topic:
    """Passages that are about the same."""

    words: tuple[str, ...]
    """Words and pairs that it has more often than the rest, the most telling first."""
    passages: int
    documents: int
    """Documents that have passages here; one may have passages in several topics."""
    typical: tuple[TypicalPassage, ...]
    changed: int | None = None
    """Documents here that are dated ``since`` or later; ``None`` where nobody asked."""
    answers: float | None = None
    """Probability that its best passage answers the question; ``None`` without one."""
    relevant: int | None = None
    """Passages among the best hundred that answer it with a probability of at least 0.2."""

    @property
    def name(self) -> str:
        """The first three words; without any, the document that is most typical."""
        return ", ".join(self.words[:3]) or self.typical[0].id


@dataclass(frozen=True)
class Overview:
    """Topics of an index: the largest first, or those first that answer a question best."""

    documents: int
    passages: int
    topics: tuple[Topic, ...]
    query: str | None = None
    since: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The overview as JSON values."""
        facts = asdict(self)
        facts["topics"] = [{"name": topic.name} | asdict(topic) for topic in self.topics]
        return facts

    def __str__(self) -> str:
        """The overview as text, a paragraph a topic."""
        lines = [f"{self.documents:,} documents, {self.passages:,} passages"]
        for topic in self.topics:
            lines.append(f"\n{', '.join(topic.words) or topic.name}")
            lines.append(f"  {', '.join(self._facts(topic))}")
            lines += [f"  {t.id}, lines {t.first_line}\u2013{t.last_line}: {t.text[:90]}" for t in topic.typical]
        return "\n".join(lines)

    def _facts(self, topic: Topic) -> Iterator[str]:
        """Yield what is counted of a topic."""
        yield f"{topic.documents:,} documents, {topic.passages:,} passages"
        if topic.changed is not None:
            yield f"{topic.changed:,} changed since {self.since}"
        if topic.answers is not None:
            yield f"answers with {topic.answers:.0%} ({topic.relevant} relevant)"

    def _repr_html_(self) -> str:
        """A table, for notebooks."""
        rows = (
            f"<tr><td>{escape(', '.join(t.words))}</td><td>{escape(', '.join(self._facts(t)))}</td></tr>"
            for t in self.topics
        )
        return f"<table>{''.join(rows)}</table>"


def vector_array(model: Model) -> ArraySpec:
    """Return the array that has one vector per passage, which every method stores."""
    return next(spec for spec in model.arrays() if len(spec.shape) == 1 and spec.dtype in VECTORS)


def overview_of(
    model: Model, view: View, topics: int, scored: tuple[Keys, Floats] | None, since: str | None, date: str
) -> Overview:
    """Survey the passages of a view.

    Args:
        model: The index's model.
        view: Documents that pass a filter.
        topics: Number of topics at most.
        scored: Keys and probabilities of the best passages for a question.
        since: Date from which on documents count as changed.
        date: Name of the metadata that date them.
    """
    topics = check_count("topics", topics)
    start = None if since is None else _date(since)
    keys, spec = view.keys(), vector_array(model)
    if not len(keys):
        return Overview(0, 0, (), since=since)
    sampled = evenly_spaced(len(keys), SAMPLE)
    vectors = unit_rows(np.asarray(view.rows(spec.name, keys[sampled].tolist()), np.float32))  # [n, d]
    centres = _centres(vectors, topics)  # [K, d]
    topic_of = _assigned(view, spec.name, keys, centres)  # [N]
    documents = view.document_keys(keys)
    words = _words(view, keys[sampled], topic_of[sampled], len(centres))
    changed = None if start is None else _changed(view, documents, start, date)
    made = []
    for number in range(len(centres)):
        rows = np.flatnonzero(topic_of == number)
        if not len(rows):
            continue
        held = np.unique(documents[rows])
        answers = None if scored is None else scored[1][np.isin(scored[0], keys[rows])]
        near = sampled[topic_of[sampled] == number]
        cosines = vectors[topic_of[sampled] == number] @ centres[number]
        made.append(
            Topic(
                words=words.get(number, ()),
                passages=len(rows),
                documents=len(held),
                typical=_typical(view, keys[near[np.argsort(-cosines, kind="stable")]]),
                changed=None if changed is None else int(np.isin(held, changed).sum()),
                answers=None if answers is None else float(answers.max(initial=0)),
                relevant=None if answers is None else int((answers >= RELEVANT).sum()),
            )
        )
    made.sort(key=lambda topic: (-(topic.answers or 0), -topic.passages))
    return Overview(len(np.unique(documents)), len(keys), tuple(made), since=since)


def _date(since: object) -> datetime:
    if (date := read_date(since)) is None:
        raise ConfigError(f"since must be a date such as '2025-11-03', got {shown(since)}")
    return date


def _centres(vectors: Floats, topics: int) -> Floats:
    """Return the centres of clusters of unit vectors [n, d], of length 1."""
    from sklearn.cluster import KMeans

    distinct = len(np.unique(vectors, axis=0))
    found = KMeans(max(1, min(topics, distinct, len(vectors) // LEAST)), n_init=1, random_state=SEED).fit(vectors)
    return unit_rows(found.cluster_centers_.astype(np.float32))


def _assigned(view: View, array: str, keys: Keys, centres: Floats) -> Rows:
    """Return the number of the nearest centre of every passage: [N]."""
    parts = [keys[start : start + CHUNK].tolist() for start in range(0, len(keys), CHUNK)]
    return np.concatenate([(np.asarray(view.rows(array, part), np.float32) @ centres.T).argmax(1) for part in parts])


def _words(view: View, keys: Keys, topic_of: Rows, topics: int) -> dict[int, tuple[str, ...]]:
    """Return the telling words of each topic that has any."""
    parts = (view.documents(keys[start : start + CHUNK].tolist()) for start in range(0, len(keys), CHUNK))
    spelled, text, term = count_terms(document.content for part in parts for document in part)
    totals, sizes = np.bincount(term, minlength=len(spelled)), np.bincount(topic_of, minlength=topics)
    topic, term, count = add_counts(topic_of[text], term, np.ones(len(term), np.int64), len(spelled))
    weight = divergence(count, sizes[topic], totals[term], len(keys))
    best = top_terms(topic, term, weight, spelled, WORDS)
    return {number: tuple(word for word, _ in words) for number, words in best}


def _typical(view: View, keys: Keys) -> tuple[TypicalPassage, ...]:
    """Return the first passages of distinct documents."""
    _, first = np.unique(view.document_keys(keys), return_index=True)
    chosen = keys[np.sort(first)[:TYPICAL]].tolist()
    return tuple(
        TypicalPassage(one.key, " ".join(one.content.split())[:SHOWN], place.first_line, place.last_line)
        for one, place in view.parts(chosen)
    )


def _changed(view: View, documents: Keys, start: datetime, date: str) -> Keys:
    """Return the keys of documents that are dated ``start`` or later."""
    keys = np.unique(documents)
    found: list[int] = []
    for at in range(0, len(keys), CHUNK):
        part = keys[at : at + CHUNK].tolist()
        for key, document in zip(part, view.documents(part), strict=True):
            dates = map(read_date, _values(document.metadata, date))
            found += [key] if any(one is not None and one >= start for one in dates) else []
    return np.array(found, np.int64)


def _values(metadata: Any, name: str) -> Sequence[object]:
    return list(flatten(metadata).get(name, ()))
