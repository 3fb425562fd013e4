"""Overview of an index: its topics, each with words, counts and typical passages, without a language model.

The stored vectors of passages (a sample of a large index) are clustered by k-means, for every method. A topic's words
are those that are more frequent in it than in the rest (:mod:`palmette.lexical.terms`).
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from textwrap import shorten
from typing import Any

import numpy as np

from palmette.arrays import Keys, Rows, evenly_spaced, unit_rows
from palmette.arrays.solvers import k_means
from palmette.config import check_count
from palmette.encoder.sentences.splitting import first_sentences
from palmette.lexical.terms import add_counts, count_terms, divergence, top_terms
from palmette.methods.base import Model
from palmette.search.plan import ArraySpec
from palmette.store.protocols import View, by_documents
from palmette.types import Document, Passage

CLUSTERED_PASSAGES = 10_000
"""Largest number of passages to cluster, and to read words of."""
ROWS_OF_A_CHUNK = 8192
"""Number of passages whose vectors are read at a time."""
WORDS_PER_TOPIC = 8
"""Largest number of words and word pairs of a topic."""
TYPICAL = 3
"""Largest number of typical passages of a topic, each of another document."""
PASSAGES_PER_TOPIC = 3
"""Least average number of passages per topic: a small index has few topics."""
TYPICAL_CHARACTERS = 200
"""Largest number of characters of a typical passage's title or sentence."""
_HEADING = re.compile(r"\s*#{1,6}[ \t]+(.+)")
_SENTENCE_ENDS = ".!?\u2026\u3002\uff01\uff1f\u061f\u0964"
VECTORS = ("float32", "float16", "int8")
"""Dtypes of stored vectors; arrays of leaf probabilities and of leaf numbers have others."""
SEED = 0
"""Seed of k-means, so that the same documents have the same topics."""


@dataclass(frozen=True)
class TypicalPassage:
    """A passage near the centre of a topic."""

    id: str
    """Id of its document."""
    text: str
    """Title and heading of the passage, or its first sentence, or the document's id."""
    first_line: int
    last_line: int


@dataclass(frozen=True)
class Topic:
    """A cluster of passages with similar vectors."""

    words: tuple[str, ...]
    """Words and word pairs that are more frequent here than in the rest, the most distinctive first."""
    passages: int
    documents: int
    """Documents with passages in this topic; a document may have passages in several topics."""
    typical: tuple[TypicalPassage, ...]

    @property
    def name(self) -> str:
        """The first three words; the id of the most typical document if there are none."""
        return ", ".join(self.words[:3]) or self.typical[0].id


@dataclass(frozen=True)
class Overview:
    """Topics of an index, the largest first."""

    documents: int
    passages: int
    topics: tuple[Topic, ...]

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
            lines.append(f"  {topic.documents:,} documents, {topic.passages:,} passages")
            lines += [f"  {t.id}, lines {t.first_line}\u2013{t.last_line}: {t.text[:90]}" for t in topic.typical]
        return "\n".join(lines)


def vector_array(model: Model) -> ArraySpec:
    """Return the specification of the one-vector-per-passage array, which every method has."""
    return next(spec for spec in model.arrays() if len(spec.shape) == 1 and spec.dtype in VECTORS)


def overview_of(model: Model, view: View, topics: int) -> Overview:
    """Survey the passages of a view by so many topics at most."""
    topics = check_count("topics", topics)
    keys, spec = view.keys(), vector_array(model)
    if not len(keys):
        return Overview(0, 0, ())
    sampled = evenly_spaced(len(keys), CLUSTERED_PASSAGES)
    # 1. clusters of a sample
    vectors = unit_rows(np.asarray(view.rows(spec.name, keys[sampled].tolist()), np.float32))  # [n, d]
    clusters = max(1, min(topics, len(np.unique(vectors, axis=0)), len(vectors) // PASSAGES_PER_TOPIC))
    centres = unit_rows(k_means(vectors, clusters, SEED)[0])  # [K, d]
    # 2. the nearest of every passage
    nearest = []
    for start in range(0, len(keys), ROWS_OF_A_CHUNK):
        rows = view.rows(spec.name, keys[start : start + ROWS_OF_A_CHUNK].tolist())
        nearest.append((np.asarray(rows, np.float32) @ centres.T).argmax(1))
    topic_of = np.concatenate(nearest)  # [N]
    # 3. what tells each from the rest
    documents = view.document_keys(keys)
    words = _words(view, keys[sampled], topic_of[sampled], len(centres))
    surveyed = []
    for number in range(len(centres)):
        rows = np.flatnonzero(topic_of == number)
        if not len(rows):
            continue
        documents_of_topic = np.unique(documents[rows])
        in_sample = topic_of[sampled] == number
        nearest_first = np.argsort(-(vectors[in_sample] @ centres[number]), kind="stable")
        surveyed.append(
            Topic(
                words=words.get(number, ()),
                passages=len(rows),
                documents=len(documents_of_topic),
                typical=_typical(view, keys[sampled[in_sample][nearest_first]]),
            )
        )
    surveyed.sort(key=lambda topic: -topic.passages)
    return Overview(len(np.unique(documents)), len(keys), tuple(surveyed))


def _words(view: View, keys: Keys, topic_of: Rows, topics: int) -> dict[int, tuple[str, ...]]:
    """Return the distinctive words of each topic that has any."""
    contents = (document.content for part in by_documents(view, keys) for document in view.documents(part))
    spelled, text, term = count_terms(contents)
    totals, sizes = np.bincount(term, minlength=len(spelled)), np.bincount(topic_of, minlength=topics)
    topic, term, count = add_counts(topic_of[text], term, np.ones(len(term), np.int64), len(spelled))
    weight = divergence(count, sizes[topic], totals[term], len(keys))
    best = top_terms(topic, term, weight, spelled, WORDS_PER_TOPIC)
    return {number: tuple(word for word, _ in words) for number, words in best}


def _typical(view: View, keys: Keys) -> tuple[TypicalPassage, ...]:
    """Return the first passage of each of the first ``TYPICAL`` documents."""
    _, first = np.unique(view.document_keys(keys), return_index=True)
    passages = view.parts(keys[np.sort(first)[:TYPICAL]].tolist())
    return tuple(
        TypicalPassage(document.key, _illustration(document, place), place.first_line, place.last_line)
        for document, place in passages
    )


def _illustration(document: Document, place: Passage) -> str:
    """Return the title and the heading of a passage, or its first whole sentence, or else its document's id."""
    title, heading = document.metadata.get("title"), place.headings[-1] if place.headings else ""
    if not heading and (own := _HEADING.match(document.content)):
        heading = own[1]
    names = [name for name in (title, heading) if isinstance(name, str) and name.strip()]
    if names:
        return shorten(" \u203a ".join(dict.fromkeys(" ".join(name.split()) for name in names)), TYPICAL_CHARACTERS)
    for sentence in first_sentences([document.content]):
        text = " ".join(sentence.split())
        if len(text) <= TYPICAL_CHARACTERS and text[0].isalnum() and text[-1] in _SENTENCE_ENDS:
            return text
    return document.key
