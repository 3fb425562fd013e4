"""The catalogue with queries: its own summaries to train on, handwritten questions to measure by."""

from __future__ import annotations

import platform
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal

from palmette.data import Qrels, RetrievalData
from palmette.sample.catalogue import python_catalogue
from palmette.sample.questions import load_questions
from palmette.types import Document

__all__ = ["sample_data"]

HELDOUT = 7
"""One module in this many lends no summaries to training."""
MIN_WORDS, MAX_SHARED = 3, 3
"""Summaries shorter than this, or the same for more entries than this, name nothing."""
MIN_BODY = 80
"""Characters that must remain of a text for its summary to be cut out of it."""


def sample_data(size: Literal["small", "full"] = "small", *, masked: bool = False) -> RetrievalData:
    """The standard library, ready to train on: what ``palmette demo``, the notebooks and the tests use.

    The splits are ``train`` (summaries → their entries), ``heldout`` (the same for modules that training does
    not see), ``dev`` and ``test`` (the two halves of the handwritten questions).

    Args:
        size: As in :func:`~palmette.sample.python_catalogue`.
        masked: Train a summary against its entry without it, where enough remains, so that it is not found by
            its own words. The corpus keeps its whole texts; there are more texts to encode.
    """
    corpus = python_catalogue(size=size)
    queries: dict[str, str] = {}
    qrels: dict[str, Qrels] = {"train": {}, "heldout": {}, "dev": {}, "test": {}}
    remainders: dict[str, str] = {}
    for summary, entries in shared_summaries(corpus).items():
        query, split = f"summary:{entries[0].key}", "heldout" if is_heldout(entries[0]) else "train"
        queries[query] = summary
        qrels[split][query] = {entry.key: 1 for entry in entries}
        if masked and len(entries) == 1 and len(entries[0].fields["body"]) >= MIN_BODY:
            remainders[query] = without_summary(entries[0])
    known = {entry.key for entry in corpus}
    for question in load_questions():
        if gold := known.intersection(question.gold):
            queries[question.id] = question.question
            qrels[question.split][question.id] = {key: 1 for key in question.gold if key in gold}
    name = f"python-{platform.python_version()}-{size}"
    return RetrievalData(name, corpus, queries, qrels, remainders=remainders)


def shared_summaries(corpus: Iterable[Document]) -> dict[str, Sequence[Document]]:
    """Summaries that say something, each with the entries that it heads."""
    found: dict[str, list[Document]] = defaultdict(list)
    for entry in corpus:
        if entry.fields["summary"] not in entry.fields["signature"]:
            found[entry.fields["summary"]].append(entry)
    return {s: e for s, e in found.items() if len(s.split()) >= MIN_WORDS and len(e) <= MAX_SHARED}


def is_heldout(entry: Document) -> bool:
    """Whether the entry's module is kept from training: by its name, so that it stays so."""
    return zlib.crc32(entry.metadata["module"].encode()) % HELDOUT == 0


def without_summary(entry: Document) -> str:
    """The entry's text less its summary."""
    return f"{entry.fields['signature'] or entry.key}\n{entry.fields['body']}"
