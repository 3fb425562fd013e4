"""Excerpts that answer a question, within a budget of tokens."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from palmette.arrays import Keys
from palmette.index.excerpts import Candidate, choose_excerpts
from palmette.index.results import SearchResult
from palmette.ranking.arrays import SENTENCE_SCALES, SENTENCES, SPANS
from palmette.ranking.score import probability
from palmette.sources.lines import Lines
from palmette.sources.passages import CountTokens
from palmette.store.protocols import StoredDocument, View
from palmette.types import Citation, Document, Passage, cite

Span = tuple[int, int]
"""First character in a document's content, and the one after the last."""
CONTEXT_TOKENS = 1000
"""Default budget of a context."""
_ENDS = r"\n\r\v\f\x1c-\x1e\x85\u2028\u2029"
_LIKE_A_CITATION = re.compile(rf"(^|[{_ENDS}])([^\S{_ENDS}]*)\[(?=\d{{1,9}}\])")
"""Begin of a line that looks like the number of an excerpt."""


@dataclass(frozen=True)
class Excerpt:
    """Consecutive sentences of a document."""

    document: Document
    """The excerpt's text, with the id and the metadata of its document."""
    place: Passage
    score: float
    """Probability that the best passage of its document answers."""

    @property
    def citation(self) -> Citation:
        """Place of the excerpt; as a text, ``guide.md › Pruning, lines 40–52``."""
        return cite(self.document, self.place)

    def to_dict(self) -> dict[str, Any]:
        """The excerpt as JSON values."""
        place = self.place.to_dict()
        del place["number"], place["count"]
        facts = {"id": self.document.key, "text": self.document.text, "score": self.score}
        facts |= {"citation": str(self.citation), "place": self.citation.to_dict()}
        return {**facts, **place, "metadata": dict(self.document.metadata)}


@dataclass(frozen=True)
class Context:
    """The best sentences for a question, with their neighbours, in the order of their documents."""

    question: str
    excerpts: tuple[Excerpt, ...]
    tokens: int
    """Tokens of all excerpts, counted by the index's encoder."""
    best: float = 0.0
    """Probability of the best passage, also where the budget holds no sentence of it."""
    note: str = ""
    """Why the passages are those of the first stage, where the reranker failed or was late."""

    def __bool__(self) -> bool:
        return bool(self.excerpts)

    def __str__(self) -> str:
        """Numbered excerpts for a prompt, each under its citation, which no line of a document can imitate."""
        parts = []
        for number, excerpt in enumerate(self.excerpts, 1):
            text = _LIKE_A_CITATION.sub(r"\1\2\\[", excerpt.document.text)
            parts.append(f"[{number}] {excerpt.citation}\n{text}")
        return "\n\n".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """The context as JSON values."""
        excerpts = [excerpt.to_dict() for excerpt in self.excerpts]
        facts = {"question": self.question, "text": str(self), "tokens": self.tokens, "excerpts": excerpts}
        return facts | ({"note": self.note} if self.note else {})


def context_of(
    result: SearchResult, view: View, question: str, budget: int, count: CountTokens, threshold: float
) -> Context:
    """Choose the best sentences among the passages of a search, up to a budget of tokens."""
    accepted = (result.candidates.keys[0] >= 0) & (probability(result.logits[0]) >= threshold)
    keys, logits = result.candidates.keys[0][accepted], result.logits[0][accepted]
    ids = view.ids(keys.tolist())
    stored = dict(zip(ids, view.stored(keys.tolist()), strict=True))
    passages = [place for _, place in view.parts(keys.tolist())]
    sentences = _sentences(result, view, keys, passages)
    candidates = [
        Candidate(id, float(logit), spans, cosines)
        for id, logit, (spans, cosines) in zip(ids, logits, sentences, strict=True)
    ]
    scores: dict[str, float] = {}  # of each document's best passage
    for id, score in zip(ids, probability(logits).tolist(), strict=True):
        scores[id] = max(score, scores.get(id, 0.0))
    texts = {id: document.document.content for id, document in stored.items()}
    places = [(candidate.document, *span) for candidate in candidates for span in candidate.sentences]
    sizes = dict(zip(places, count([texts[id][start:end] for id, start, end in places]), strict=True))

    def size(id: str, start: int, end: int) -> int:
        """Tokens of a sentence, or of the text between two."""
        place = id, start, end
        return sizes[place] if place in sizes else count([texts[id][start:end]])[0]

    chosen = choose_excerpts(candidates, budget, size)
    excerpts = tuple(_excerpt(stored[span.document], span.start, span.end, scores[span.document]) for span in chosen)
    tokens = sum(count([excerpt.document.text for excerpt in excerpts])) if excerpts else 0
    return Context(question, excerpts, tokens, max(scores.values(), default=0.0))


def _sentences(
    result: SearchResult, view: View, keys: Keys, passages: Sequence[Passage]
) -> list[tuple[list[Span], list[float]]]:
    """Return the sentences of each passage, as spans of its document, and their cosines with the question.

    A passage without stored sentences is one sentence of cosine 0.
    """
    whole = [([(passage.start, passage.end)], [0.0]) for passage in passages]
    if result.batch.vectors is None or not len(keys):
        return whole
    vectors, scales, spans = (view.ragged(name, keys) for name in (SENTENCES, SENTENCE_SCALES, SPANS))
    sentences = []
    for row, passage in enumerate(passages):
        cosines = (vectors.row(row).astype(np.float32) @ result.batch.vectors[0]) * scales.row(row).reshape(-1)
        in_document = [(passage.start + int(start), passage.start + int(end)) for start, end in spans.row(row)]
        sentences.append((in_document, cosines.astype(float).tolist()) if in_document else whole[row])
    return sentences


def _excerpt(stored: StoredDocument, start: int, end: int, score: float) -> Excerpt:
    """Cut an excerpt of a document; its headings are those of the passage that it begins in."""
    content, lines = stored.document.content, Lines(stored.document.content)
    number = max(0, bisect_right([passage.start for passage in stored.passages], start) - 1)
    place = Passage(start, end, stored.passages[number].headings, lines.at(start) + 1, lines.at(end - 1) + 1)
    return Excerpt(replace(stored.document, text=content[start:end]), place, score)
