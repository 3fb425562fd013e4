"""Arrays of the passages that a change adds: of given vectors, kept from the index, or newly encoded."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from palmette.arrays import Floats, Ragged, Rows, Stored, concatenate, take_documents
from palmette.methods.base import Model
from palmette.ranking.arrays import SENTENCES, sentence_arrays, stored_arrays
from palmette.search.plan import ArraySpec
from palmette.sources.cutting import Cutter, texts_above
from palmette.store.protocols import PAGE, StoredDocument, View, read_array
from palmette.types import Document

Prepared = tuple[list[StoredDocument], dict[str, Stored]]
"""Documents with their passages, and arrays with a row for each passage."""


class PassageArrays:
    """Cuts the documents of a change, and encodes the passages whose arrays the index does not have.

    A passage of a document that the change replaces or deletes keeps its arrays, wherever it moves: within its
    document, to another one, or to another id.
    """

    def __init__(self, model: Model, view: View, sentences: bool, cutter: Cutter, source: str = "") -> None:
        self.model, self.view, self.sentences, self.cutter, self.source = model, view, sentences, cutter, source
        self.specs = index_arrays(model, sentences)
        self.digests: dict[str, str] = {}
        """Digests of the documents that the index has, by id."""
        self.encoded = 0
        """Number of passages that were encoded."""
        self.prepared: dict[str, tuple[StoredDocument, int]] = {}
        """Documents whose arrays are ready, by id, each with the row of its first passage."""
        self._questions: dict[str, str] = {}  # of passages of replaced and deleted documents, by their text
        self._reusable: dict[str, int] = {}  # digest of a passage's encoder input → key of the passage in the index
        self._batches: list[Mapping[str, Stored]] = []  # arrays of the prepared documents
        self._rows = 0  # in all batches

    def look_up(self, latest: Mapping[str, Document], delete: Iterable[str]) -> None:
        """Read the index's documents of these ids, and note the passages of those that are replaced or deleted."""
        ids = list(dict.fromkeys([*latest, *delete]))
        for id, keys, stored in existing_documents(self.view, ids):
            self.digests[id] = stored.document.digest
            if id not in latest or latest[id].digest != self.digests[id]:
                self._reusable |= zip(self._input_digests(stored), keys, strict=True)
                asked = zip(stored.parts(), stored.questions, strict=False)  # which may be empty
                self._questions |= {part.content: questions for part, questions in asked if questions}

    def _input_digests(self, stored: StoredDocument) -> list[str]:
        """Digest everything that the arrays of each passage depend on: its text and the headings above it."""
        pairs = zip(stored.parts(), texts_above(stored), strict=True)
        inputs = (repr((above, self.model.content_read(passage))) for passage, above in pairs)
        return [hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest() for text in inputs]

    def take_vectors(self, documents: Sequence[Document], vectors: Floats) -> None:
        """Prepare documents from given vectors [N, d]; each document is one passage."""
        stored = self._with_questions(StoredDocument.whole(document, source=self.source) for document in documents)
        self._add(stored, stored_arrays(self.model, documents, self.sentences, vectors))

    def prepare(self, documents: Sequence[Document]) -> None:
        """Compute the arrays of documents, and keep them for :meth:`arrays_of`."""
        self._add(*self._compute(self.cutter.cut(documents)))

    def _add(self, stored: Sequence[StoredDocument], arrays: Mapping[str, Stored]) -> None:
        for document in stored:
            self.prepared[document.document.key] = document, self._rows
            self._rows += len(document.passages)
        self._batches.append(arrays)

    def forget(self) -> None:
        """Release the prepared arrays."""
        self.prepared, self._batches, self._rows = {}, [], 0

    def arrays_of(self, documents: Sequence[Document]) -> Prepared:
        """Return documents with their passages and arrays: the prepared ones, else computed now."""
        if any(document.key not in self.prepared for document in documents):
            return self._compute(self.cutter.cut(documents))
        if len(self._batches) > 1:
            joined = {spec.name: concatenate([batch[spec.name] for batch in self._batches]) for spec in self.specs}
            self._batches = [joined]
        prepared = [self.prepared[document.key] for document in documents]
        rows = np.concatenate([first_row + np.arange(len(stored.passages)) for stored, first_row in prepared])
        arrays = dict(self._batches[0])
        if not np.array_equal(rows, np.arange(self._rows)):
            arrays = {name: take_documents(array, rows) for name, array in arrays.items()}
        return [stored for stored, _ in prepared], arrays

    def _compute(self, cut: Sequence[StoredDocument]) -> Prepared:
        """Read or encode the arrays of the passages of documents."""
        stored = self._with_questions(StoredDocument(one.document, one.passages, self.source) for one in cut)
        passages, above = passages_of(stored)
        keys = self._reused_keys(stored)
        fresh, reused = np.flatnonzero(keys < 0), np.flatnonzero(keys >= 0)
        self.encoded += len(fresh)
        if len(fresh):
            self.model.encoder.check_reads_documents()
        if not len(reused):
            return stored, stored_arrays(self.model, passages, self.sentences, above=above)
        reused_keys = keys[reused].tolist()
        arrays: dict[str, Stored] = {spec.name: read_array(self.view, spec, reused_keys) for spec in self.specs}
        if len(fresh):
            fresh_passages, fresh_above = [passages[row] for row in fresh], [above[row] for row in fresh]
            encoded = stored_arrays(self.model, fresh_passages, self.sentences, above=fresh_above)
            in_order = np.argsort(np.concatenate([reused, fresh]))
            for name, rows in arrays.items():
                arrays[name] = take_documents(concatenate([rows, encoded[name]]), in_order)
        return stored, arrays

    def _with_questions(self, cut: Iterable[StoredDocument]) -> list[StoredDocument]:
        """Give passages whose text the index has, in a document that the change replaces, the questions about it."""
        if not self._questions:
            return list(cut)
        stored = []
        for document in cut:
            questions = tuple(self._questions.get(part.content, "") for part in document.parts())
            stored.append(replace(document, questions=questions if any(questions) else ()))
        return stored

    def _reused_keys(self, stored: Sequence[StoredDocument]) -> Rows:
        """Keys in the index of the passages whose arrays are reused, −1 for passages to encode: [P]."""
        if not self._reusable:
            return np.full(sum(len(document.passages) for document in stored), -1)
        digests = [digest for document in stored for digest in self._input_digests(document)]
        keys = np.array([self._reusable.get(digest, -1) for digest in digests])
        reused = np.flatnonzero(keys >= 0)
        if self.sentences and len(reused):  # a passage that was added with its vector has no sentences yet
            sentences: Ragged = self.view.ragged(SENTENCES, keys[reused].tolist())
            keys[reused[sentences.counts(np.arange(len(reused))) == 0]] = -1
        return keys


def index_arrays(model: Model, sentences: bool) -> tuple[ArraySpec, ...]:
    """Return the arrays that an index stores for a model: the method's, and those of sentences if they are stored."""
    of_sentences = sentence_arrays(model.encoder.dimension) if sentences and model.sentences else ()
    return (*model.arrays(), *of_sentences)


def passages_of(stored: Sequence[StoredDocument]) -> tuple[list[Document], list[str]]:
    """Return the passages of documents, and the title and headings above each."""
    passages = [passage for document in stored for passage in document.parts()]
    return passages, [above for document in stored for above in texts_above(document)]


def encode_stored(model: Model, stored: Sequence[StoredDocument], sentences: bool) -> dict[str, Stored]:
    """Encode all passages of documents that are already cut."""
    model.encoder.check_reads_documents()
    passages, above = passages_of(stored)
    return stored_arrays(model, passages, sentences, above=above)


def existing_documents(view: View, ids: Sequence[str]) -> Iterator[tuple[str, Sequence[int], StoredDocument]]:
    """Yield the documents that exist among some ids: id, keys of the passages, and content."""
    for start in range(0, len(ids), PAGE):
        keys_of = view.keys_of(ids[start : start + PAGE])
        documents = view.stored([keys[0] for keys in keys_of.values()])
        for (id, keys), document in zip(keys_of.items(), documents, strict=True):
            yield id, keys, document
