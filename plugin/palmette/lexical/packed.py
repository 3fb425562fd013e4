"""A document's words in one text, for storage that keeps documents rather than postings; and their shares."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import Floats
from palmette.lexical.analyser import Analyser
from palmette.lexical.bm25 import QueryTerms, shares
from palmette.lexical.postings import COUNT_BITS, MAX_COUNT, PostingsBuilder

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
    """[n, T] what each term adds to documents of these norms; 0 to those without the query's phrases."""
    parts = np.zeros((len(texts), len(query.terms)), np.float32)
    entries, row = from_texts(texts), np.repeat(np.arange(len(texts)), [len(one) // 8 for one in texts])
    terms, counts = entries >> np.uint64(COUNT_BITS), (entries & np.uint64(MAX_COUNT)).astype(np.uint8)
    for column, term in enumerate(query.terms):
        at = np.flatnonzero(terms == np.uint64(term))
        parts[row[at], column] = shares(counts[at], norms[row[at]], weight[column])
    for term in query.required:
        parts[np.setdiff1d(np.arange(len(texts)), row[terms == np.uint64(term)])] = 0
    return parts
