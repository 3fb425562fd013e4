"""A document's terms and counts packed into one text, for storages that keep documents instead of postings.

entry (48 bits):   00 | term number (40) | count (6)     six bytes, little-endian, in base64: 8 characters
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import Floats, Rows
from palmette.lexical.analyser import Analyser
from palmette.lexical.bm25 import QueryTerms, shares
from palmette.lexical.postings import COUNT_BITS, MAX_COUNT, PostingsBuilder

Entries = NDArray[np.uint64]
"""Terms of a document, each with its count in the lower ``COUNT_BITS`` bits."""
SPARSE = 8
"""Lower bits of a 40-bit term number that a sparse vector's 32-bit position leaves out."""


def pack(analyser: Analyser, texts: Sequence[str]) -> tuple[list[Entries], list[int]]:
    """Analyse texts: return the entries and the number of words of each."""
    builder = PostingsBuilder(analyser)
    builder.add(texts)
    postings = builder.collected()
    hits = np.concatenate([run.hits for run in postings.runs()])
    terms = np.concatenate([np.repeat(run.terms, np.diff(run.starts)) for run in postings.runs()])
    entries, rows = terms << np.uint64(COUNT_BITS) | (hits & MAX_COUNT), hits >> COUNT_BITS
    order = np.lexsort((entries, rows))
    return np.split(entries[order], np.searchsorted(rows[order], np.arange(1, len(texts)))), postings.lengths.tolist()


def to_text(entries: Entries) -> str:
    """Encode entries in base64, eight characters each, so that texts can be joined."""
    return b64encode(entries.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :6].tobytes()).decode()


def from_texts(texts: Sequence[str]) -> Entries:
    """Decode the entries of joined texts."""
    packed = np.frombuffer(b64decode("".join(texts)), np.uint8).reshape(-1, 6)
    padded = np.zeros((len(packed), 8), np.uint8)
    padded[:, :6] = packed
    return padded.view("<u8")[:, 0]


def sparse(terms: Sequence[int], values: Sequence[float]) -> dict[int, float]:
    """Build a sparse vector; of terms that share a position the highest value counts."""
    vector: dict[int, float] = {}
    for term, value in zip(terms, values, strict=True):
        vector[term >> SPARSE] = max(value, vector.get(term >> SPARSE, 0.0))
    return vector


def impacts(entries: Entries, norm: float) -> dict[int, float]:
    """Build the sparse vector of count / (count + norm) of a document's terms."""
    counts = (entries & np.uint64(MAX_COUNT)).astype(np.uint8)
    share = shares(counts, np.full(len(counts), norm, np.float32), np.float32(1))
    return sparse((entries >> np.uint64(COUNT_BITS)).tolist(), share.tolist())


def parts_of(query: QueryTerms, weight: Floats, texts: Sequence[str], norms: Floats) -> Floats:
    """Return each term's addition to the scores of documents with these norms: [n, T], for few documents."""
    parts = np.zeros((len(texts), len(query.terms)), np.float32)
    row, column, share = _shares(query, weight, texts, norms)
    parts[row, column] = share
    return parts


def scores_of(query: QueryTerms, weight: Floats, texts: Sequence[str], norms: Floats) -> Floats:
    """Score documents with these norms [n], added in the order of the terms; 0 without the quoted phrases."""
    scores = np.zeros(len(texts), np.float32)
    row, column, share = _shares(query, weight, texts, norms)
    order = np.argsort(column, kind="stable")
    np.add.at(scores, row[order], share[order])
    entries, row = _entries(texts)
    for term in query.required:
        scores[np.setdiff1d(np.arange(len(texts)), row[entries >> np.uint64(COUNT_BITS) == np.uint64(term)])] = 0
    return scores


def _entries(texts: Sequence[str]) -> tuple[Entries, Rows]:
    """Decode texts: return all entries, and the row of each."""
    return from_texts(texts), np.repeat(np.arange(len(texts)), [len(text) // 8 for text in texts])


def _shares(query: QueryTerms, weight: Floats, texts: Sequence[str], norms: Floats) -> tuple[Rows, Rows, Floats]:
    """Find the query's terms in documents: the document and term of each match, and what it adds to the score.

    Documents are numbered as ``texts``, terms as those of the query.
    """
    entries, row = _entries(texts)
    order = np.argsort(np.array(query.terms, np.uint64), kind="stable")
    query_terms = np.array(query.terms, np.uint64)[order]
    terms, counts = entries >> np.uint64(COUNT_BITS), (entries & np.uint64(MAX_COUNT)).astype(np.uint8)
    places = np.searchsorted(query_terms, terms).clip(max=max(0, len(query_terms) - 1))
    matches = np.flatnonzero(query_terms[places] == terms) if len(query_terms) else np.empty(0, np.int64)
    column = order[places[matches]]
    return row[matches], column, shares(counts[matches], norms[row[matches]], weight[column])
