"""Arrays of the passages that a change puts in: given, kept from documents that it replaces, or encoded."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from palmette.arrays import Floats, Ragged, Rows, Stored, concatenate, take_documents
from palmette.model import Model
from palmette.ranking.arrays import SENTENCES, sentence_arrays, stored_arrays
from palmette.search.plan import View, read_array
from palmette.search.stored import StoredDocument
from palmette.sources.cutting import Cutter, texts_above
from palmette.store.backend import PAGE
from palmette.types import Document

Prepared = tuple[list[StoredDocument], dict[str, Stored]]
"""Documents with their passages, and arrays with a row for each passage."""


class PassageArrays:
    """Cuts the documents of a change, and encodes the passages that its index does not hold already.

    A passage of a document that the change replaces or deletes keeps its arrays, wherever it moves: within its
    document, to another one, or to another name.
    """

    def __init__(self, model: Model, view: View, sentences: bool, cutter: Cutter, source: str = "") -> None:
        self.model, self.view, self.sentences, self.cutter, self.source = model, view, sentences, cutter, source
        self.specs = (*model.arrays(), *(sentence_arrays(model.encoder.dimension) if sentences else ()))
        self.held: dict[str, str] = {}
        """Digests of the documents that are there, by id."""
        self.encoded = 0
        """Passages that were encoded."""
        self.ready: dict[str, tuple[StoredDocument, int]] = {}
        """Documents whose arrays are made, and the row of the first passage of each."""
        self._keys: dict[str, int] = {}  # of passages whose arrays are kept, by what was read of them
        self._parts: list[Mapping[str, Stored]] = []
        self._rows = 0

    def look_up(self, latest: Mapping[str, Document], delete: Iterable[str]) -> None:
        """Read which documents are there, and what is known of those that will be replaced or deleted."""
        ids = list(dict.fromkeys([*latest, *delete]))
        for start in range(0, len(ids), PAGE):
            keys = self.view.keys_of(ids[start : start + PAGE])
            stored = self.view.stored([some[0] for some in keys.values()])
            for (id, some), one in zip(keys.items(), stored, strict=True):
                self.held[id] = one.document.digest
                if id not in latest or latest[id].digest != self.held[id]:
                    read = self._read_of(one)
                    self._keys |= zip(read, some, strict=True)

    def _read_of(self, stored: StoredDocument) -> list[str]:
        """Digests of all that an encoding of each passage depends on."""
        pairs = zip(stored.parts(), texts_above(stored), strict=True)
        read = (repr((above, self.model.content_read(part))) for part, above in pairs)
        return [hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest() for text in read]

    def take_vectors(self, documents: Sequence[Document], vectors: Floats) -> None:
        """Take the given vectors of documents, each of which is one passage."""
        stored = [StoredDocument.whole(document, source=self.source) for document in documents]
        self._add(stored, stored_arrays(self.model, documents, self.sentences, vectors))

    def prepare(self, documents: Sequence[Document]) -> None:
        """Make the arrays of some documents, and keep them."""
        self._add(*self._make(documents))

    def _add(self, stored: Sequence[StoredDocument], arrays: Mapping[str, Stored]) -> None:
        for one in stored:
            self.ready[one.document.key] = one, self._rows
            self._rows += len(one.passages)
        self._parts.append(arrays)

    def forget(self) -> None:
        """Let go of the arrays that are ready."""
        self.ready, self._parts, self._rows = {}, [], 0

    def of(self, documents: Sequence[Document]) -> Prepared:
        """Documents with their passages and arrays: those that are ready, or else made now."""
        if any(document.key not in self.ready for document in documents):
            return self._make(documents)
        if len(self._parts) > 1:
            self._parts = [{spec.name: concatenate([part[spec.name] for part in self._parts]) for spec in self.specs}]
        found = [self.ready[document.key] for document in documents]
        rows = np.concatenate([first + np.arange(len(one.passages)) for one, first in found])
        return [one for one, _ in found], {
            name: take_documents(rows_of, rows) for name, rows_of in self._parts[0].items()
        }

    def _make(self, documents: Sequence[Document]) -> Prepared:
        stored = [StoredDocument(one.document, one.passages, self.source) for one in self.cutter.cut(documents)]
        parts = [part for one in stored for part in one.parts()]
        above = [title for one in stored for title in texts_above(one)]
        keys = self._kept_keys(stored)
        fresh = np.flatnonzero(keys < 0)
        self.encoded += len(fresh)
        if len(fresh):
            self.model.encoder.check_reads_documents()
        if len(fresh) == len(parts):
            return stored, stored_arrays(self.model, parts, self.sentences, above=above)
        kept = np.flatnonzero(keys >= 0)
        arrays: dict[str, Stored] = {spec.name: read_array(self.view, spec, keys[kept].tolist()) for spec in self.specs}
        if len(fresh):
            some, titles = [parts[at] for at in fresh], [above[at] for at in fresh]
            encoded = stored_arrays(self.model, some, self.sentences, above=titles)
            back = np.argsort(np.concatenate([kept, fresh]))
            arrays = {name: take_documents(concatenate([rows, encoded[name]]), back) for name, rows in arrays.items()}
        return stored, arrays

    def _kept_keys(self, stored: Sequence[StoredDocument]) -> Rows:
        """[P] keys of the passages whose arrays are kept, −1 for those to be encoded."""
        if not self._keys:
            return np.full(sum(len(one.passages) for one in stored), -1)
        keys = np.array([self._keys.get(read, -1) for one in stored for read in self._read_of(one)])
        known = np.flatnonzero(keys >= 0)
        if self.sentences and len(known):  # a document that came with its vector has no sentences yet
            rows: Ragged = self.view.ragged(SENTENCES, keys[known].tolist())
            keys[known[rows.counts(np.arange(len(known))) == 0]] = -1
        return keys
