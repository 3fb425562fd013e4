"""What an index of the collections finds, and what sentences and words cost: the product as it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from common import Ready
from palmette import Document, Index, SpaceModel, load_data
from palmette.encoder.sentences import Sentences
from recording import Line
from relevant.candidates import GIVEN, Collection, Example, Floats, K, gain, ideal_of

MANY, SOME, RUNS = 100_000, 300, 3
"""Documents of the large index; documents and questions that are timed; repetitions, of which the best counts."""


class Known(Ready):
    """Vectors of a collection, of its sentences too; where these stand is unknown."""

    def __init__(self, collection: Collection, contents: Sequence[str]) -> None:
        super().__init__(collection.documents.shape[1], dict(zip(contents, collection.documents, strict=True)))
        self.collection, self.rows = collection, {text: row for row, text in enumerate(contents)}

    def encode_sentences(self, texts: Sequence[str], **_: Any) -> Any:
        parts = [self.collection.rows(self.rows[text]) for text in texts]
        starts, spans = np.cumsum([0, *map(len, parts)]), np.zeros((sum(map(len, parts)), 2), np.int32)
        vectors = self.collection.sentences[np.concatenate(parts)].astype(np.float32)
        return self.encode(texts), Sentences.of(vectors, spans, starts)


def indexed(collection: Collection, data: Path) -> tuple[Index, Known]:
    """Index of a collection whose documents' ids are their rows."""
    name, texts = collection.name, collection.texts
    corpus = load_data(data / name).corpus if name in GIVEN else [Document(text=text) for text in texts]
    documents = [replace(document, id=str(row)) for row, document in enumerate(corpus)]
    encoder = Known(collection, [document.content for document in documents])
    return Index.build(documents, SpaceModel.untrained(encoder), progress=False), encoder


def measured(collection: Collection, off: Sequence[Example], data: Path) -> tuple[Line, Floats, Floats, Floats]:
    """nDCG@10 of an index with default options, and first hits: own scores, which are right, off-topic scores."""
    index, encoder = indexed(collection, data)
    asked, scores = collection.asked["test"], []
    for one in (asked, *off):
        encoder.known.update(zip(one.texts, one.vectors, strict=True))
    found = index.rank(asked.texts, K)
    for ids, judged in zip(found.ids, asked.judged, strict=True):
        grades = [judged.get(int(id), 0.0) for id in ids]
        scores.append(float(gain(np.array([grades + [0.0] * (K - len(grades))]))[0]))
    right = np.array([judged.get(int(ids[0]), 0) > 0 for ids, judged in zip(found.ids, asked.judged, strict=True)])
    own = np.array([given[0] for given in found.scores])
    other = np.array([given[0] for one in off for given in index.rank(one.texts, 1).scores])
    index.close()
    return {"nDCG@10": float((np.array(scores) / ideal_of(asked.judged)).mean())}, own, right, other


def cheapest(*works: Callable[[], Any]) -> list[float]:
    """Seconds of the processor that each work takes, in turns, so that other processes disturb all alike."""
    times = np.full((RUNS, len(works)), np.inf)
    for run in range(RUNS):
        for place, work in enumerate(works):
            begun = time.process_time()
            work()
            times[run, place] = time.process_time() - begun
    return times.min(axis=0).tolist()


def costs(collections: Sequence[Collection], encoder: Any) -> Line:
    """Search, size and indexing with sentences and words, as multiples of those without."""
    draw = np.random.default_rng(0)
    pool = [(one, row) for one in collections for row in range(len(one.texts))]
    chosen = [pool[at] for at in draw.integers(0, len(pool), MANY).tolist()]
    texts = [f"{one.texts[row]} {at}" for at, (one, row) in enumerate(chosen)]  # each once
    noise = draw.normal(0, 0.02, (MANY, collections[0].documents.shape[1]))
    vectors = np.stack([one.documents[row] for one, row in chosen]) + noise
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    parts = [one.sentences[one.rows(row)] for one, row in chosen]
    first = np.cumsum([0, *map(len, parts)])[:-1]
    asked = {one.name: one.asked["test"] for one in collections}
    whole = Collection("many", texts, vectors.astype(np.float32), np.concatenate(parts), first, asked)
    known, documents = Known(whole, texts), [Document(str(row), text) for row, text in enumerate(texts)]
    index = Index.build(documents, SpaceModel.untrained(known), progress=False)
    plain = Index.build(documents, SpaceModel.untrained(known), sentences=False, progress=False)
    questions = []
    for one in asked.values():
        known.known.update(zip(one.texts, one.vectors, strict=True))
        questions += one.texts[: SOME // len(asked)]
    for question in questions:  # postings and statistics of words are read once
        index.search(question, K)

    def each(**how: Any) -> Callable[[], Any]:
        return lambda: [index.search(question, K, **how) for question in questions]

    alone, both, words = cheapest(each(lexical=0, sentences=False), each(), each(sentences=False))
    contents, some = texts[:SOME], documents[:SOME]
    model = SpaceModel.untrained(encoder)
    encoding, building = cheapest(lambda: encoder.encode(contents), lambda: Index.build(some, model, progress=False))
    sizes = [one.stats().bytes / MANY for one in (index, plain)]
    return {
        "search: method alone, ms": 1000 * alone / len(questions),
        "search: words, ms": 1000 * words / len(questions),
        "search: words and sentences, ms": 1000 * both / len(questions),
        "bytes a document": sizes[0],
        "bytes without sentences": sizes[1],
        "indexing by plain encoding": building / encoding,
    }
