"""A document's words in one text, for storage that keeps documents rather than postings; and their shares."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import Floats, Rows
from palmette.lexical.analyser import Analyser
from palmette.lexical.bm25 import shares
from palmette.lexical.postings import COUNT_BITS, MAX_COUNT, PostingsBuilder
from palmette.lexical.query import QueryTerms

Entries = NDArray[np.uint64]
"""Words and pairs of a document, each with its count in the lower bits."""
SPARSE = 8
"""Bits of a term's number that a sparse vector's place, of 32 bits, leaves out."""


def pack(analyser: Analyser, texts: Sequence[str]) -> tuple[list[Entries], list[int]]:
    """Entries and number of words of each text."""
    builder = PostingsBuilder(analyser)
    builder.add(texts)
    found = builder.collected()
    hits = np.concatenate([run.hits for run in found.runs()])
    terms = np.concatenate([np.repeat(run.terms, np.diff(run.starts)) for run in found.runs()])
    entries, rows = terms << np.uint64(COUNT_BITS) | (hits & MAX_COUNT), hits >> COUNT_BITS
    order = np.lexsort((entries, rows))
    return np.split(entries[order], np.searchsorted(rows[order], np.arange(1, len(texts)))), found.lengths.tolist()


def to_text(entries: Entries) -> str:
    """Write entries, six bytes or eight characters each, so that texts can be read on end."""
    return b64encode(entries.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :6].tobytes()).decode()


def from_texts(texts: Sequence[str]) -> Entries:
    """Read the entries of texts, one after the other."""
    packed = np.frombuffer(b64decode("".join(texts)), np.uint8).reshape(-1, 6)
    padded = np.zeros((len(packed), 8), np.uint8)
    padded[:, :6] = packed
    return padded.view("<u8")[:, 0]


def sparse(terms: Sequence[int], values: Sequence[float]) -> dict[int, float]:
    """Sparse vector; the highest value stands for two terms that share a place."""
    found: dict[int, float] = {}
    for term, value in zip(terms, values, strict=True):
        found[term >> SPARSE] = max(value, found.get(term >> SPARSE, 0.0))
    return found


def impacts(entries: Entries, norm: float) -> dict[int, float]:
    """Sparse vector of what a document of this norm makes of each word's weight."""
    counts = (entries & np.uint64(MAX_COUNT)).astype(np.uint8)
    share = shares(counts, np.full(len(counts), norm, np.float32), np.float32(1))
    return sparse((entries >> np.uint64(COUNT_BITS)).tolist(), share.tolist())


def parts_of(query: QueryTerms, weight: Floats, texts: Sequence[str], norms: Floats) -> Floats:
    """[n, T] what each term adds to documents of these norms; meant for few documents."""
    parts = np.zeros((len(texts), len(query.terms)), np.float32)
    row, column, share = _shares(query, weight, texts, norms)
    parts[row, column] = share
    return parts


def scores_of(query: QueryTerms, weight: Floats, texts: Sequence[str], norms: Floats) -> Floats:
    """[n] scores of documents of these norms, added in the terms' order; 0 for those without the query's phrases."""
    scores = np.zeros(len(texts), np.float32)
    row, column, share = _shares(query, weight, texts, norms)
    order = np.argsort(column, kind="stable")
    np.add.at(scores, row[order], share[order])
    entries, row = _entries(texts)
    for term in query.required:
        scores[np.setdiff1d(np.arange(len(texts)), row[entries >> np.uint64(COUNT_BITS) == np.uint64(term)])] = 0
    return scores


def _entries(texts: Sequence[str]) -> tuple[Entries, Rows]:
    """Entries of texts, and the row of each."""
    return from_texts(texts), np.repeat(np.arange(len(texts)), [len(one) // 8 for one in texts])


def _shares(query: QueryTerms, weight: Floats, texts: Sequence[str], norms: Floats) -> tuple[Rows, Rows, Floats]:
    """Row, column and share of each entry that is a term of the query."""
    entries, row = _entries(texts)
    order = np.argsort(np.array(query.terms, np.uint64), kind="stable")
    known = np.array(query.terms, np.uint64)[order]
    terms, counts = entries >> np.uint64(COUNT_BITS), (entries & np.uint64(MAX_COUNT)).astype(np.uint8)
    at = np.searchsorted(known, terms).clip(max=max(0, len(known) - 1))
    held = np.flatnonzero(known[at] == terms) if len(known) else np.empty(0, np.int64)
    column = order[at[held]]
    many, norm = counts[held].astype(np.float32), norms[row[held]]
    return row[held], column, weight[column] * (many / (many + norm))
