"""What stands around hits: passages widened to their section, and excerpts for a language model or a reader."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from palmette.config import check_choice
from palmette.index.folder import check_count
from palmette.index.results import SearchResult
from palmette.ranking.arrays import SCALES, SENTENCES, SPANS
from palmette.ranking.score import probability
from palmette.search.plan import View
from palmette.search.stored import StoredDocument
from palmette.sources.excerpts import Candidate, choose_excerpts
from palmette.sources.lines import Lines
from palmette.types import Document, Hit, Passage, Surroundings, cite

Expand = Literal["neighbours", "section", "document"]
CountTokens = Callable[[Sequence[str]], Sequence[int]]
TOKENS = 1000
"""Tokens of a passage with what is around it, and of a context."""


@dataclass(frozen=True)
class Excerpt:
    """Sentences of a document that follow each other."""

    document: Document
    """The excerpt's text, with the id and the metadata of its document."""
    place: Passage
    score: float
    """Probability that its best passage answers."""

    @property
    def citation(self) -> str:
        """Where it stands, for people."""
        return cite(self.document, self.place)

    def to_dict(self) -> dict[str, Any]:
        """The excerpt as JSON values."""
        place = self.place.to_dict()
        del place["number"], place["count"]
        facts = {"id": self.document.key, "text": self.document.text, "citation": self.citation, "score": self.score}
        return {**facts, **place, "metadata": dict(self.document.metadata)}


@dataclass(frozen=True)
class Context:
    """The best sentences for a question, with their neighbours, in the order of their documents."""

    question: str
    excerpts: tuple[Excerpt, ...]
    tokens: int
    """Tokens of all excerpts, as the index's encoder counts them."""

    def __bool__(self) -> bool:
        return bool(self.excerpts)

    def __str__(self) -> str:
        """Numbered excerpts, each under its citation: what a prompt takes."""
        return "\n\n".join(f"[{n}] {one.citation}\n{one.document.text}" for n, one in enumerate(self.excerpts, 1))

    def to_dict(self) -> dict[str, Any]:
        """The context as JSON values."""
        excerpts = [one.to_dict() for one in self.excerpts]
        return {"question": self.question, "text": str(self), "tokens": self.tokens, "excerpts": excerpts}


def expand_hits(view: View, hits: Sequence[Hit], how: Expand, tokens: int, count: CountTokens) -> list[Hit]:
    """Add to each hit the passages around it, as many as fit."""
    keys = view.keys_of([hit.id for hit in hits])
    known = [hit.id for hit in hits if hit.passage is not None and hit.passage.count > 1 and hit.id in keys]
    found = view.stored([keys[id][0] for id in known])
    stored = dict(zip(known, found, strict=True))
    return [_expanded(hit, stored[hit.id], how, tokens, count) if hit.id in stored else hit for hit in hits]


def check_expand(how: Any, tokens: Any) -> int:
    """Check the options of a search."""
    if how is not None:
        check_choice("expand", how, get_args(Expand))
    return check_count("expand_tokens", tokens)


def _expanded(hit: Hit, stored: StoredDocument, how: Expand, tokens: int, count: CountTokens) -> Hit:
    """Widen a hit by whole passages, the one after it first."""
    assert hit.passage is not None
    number = first = last = hit.passage.number
    lowest, highest = _bounds(stored.passages, number, how)
    texts = [stored.part(at).text for at in range(lowest, highest + 1)]
    sizes = dict(zip(range(lowest, highest + 1), count(texts), strict=True))
    left = tokens - sizes[number]
    while True:
        if last < highest and sizes[last + 1] <= left:
            last += 1
            left -= sizes[last]
        elif first > lowest and sizes[first - 1] <= left:
            first -= 1
            left -= sizes[first]
        else:
            break
    begin, end = stored.passages[first], stored.passages[last]
    text = stored.document.content[begin.start : end.end]
    return replace(hit, around=Surroundings(text, begin.start, end.end, begin.first_line, end.last_line))


def _bounds(passages: Sequence[Passage], number: int, how: Expand) -> tuple[int, int]:
    """Return the first and the last passage that a hit may be widened to."""
    if how == "document":
        return 0, len(passages) - 1
    if how == "neighbours":
        return max(0, number - 1), min(len(passages) - 1, number + 1)
    heads = passages[number].headings
    first = last = number
    while first > 0 and passages[first - 1].headings[: len(heads)] == heads:
        first -= 1
    while last + 1 < len(passages) and passages[last + 1].headings[: len(heads)] == heads:
        last += 1
    return first, last


def context_of(
    result: SearchResult, view: View, question: str, tokens: int, count: CountTokens, threshold: float
) -> Context:
    """Choose the sentences of the passages of a search that answer best, up to a budget of tokens."""
    kept = (result.found.keys[0] >= 0) & (probability(result.logits[0]) >= threshold)
    keys, logits = result.found.keys[0][kept], result.logits[0][kept]
    stored = dict(zip((ids := view.ids(keys.tolist())), view.stored(keys.tolist()), strict=True))
    places = view.passages(keys.tolist())
    candidates = [
        Candidate(id, float(logit), *sentences)
        for id, logit, sentences in zip(ids, logits, _sentences(result, view, keys, places), strict=True)
    ]
    scores: dict[str, float] = {}
    for id, chance in zip(ids, probability(logits).tolist(), strict=True):
        scores[id] = max(chance, scores.get(id, 0.0))
    spans = [(one.document, *span) for one in candidates for span in one.sentences]
    sizes = dict(zip(spans, count([stored[id].document.content[a:b] for id, a, b in spans]), strict=True))
    chosen = choose_excerpts(candidates, tokens, lambda *span: sizes[span])
    excerpts = tuple(_excerpt(stored[one.document], one.start, one.end, scores[one.document]) for one in chosen)
    return Context(question, excerpts, sum(count([one.document.text for one in excerpts])) if excerpts else 0)


def _sentences(
    result: SearchResult, view: View, keys: Any, places: Sequence[Passage]
) -> list[tuple[list[tuple[int, int]], list[float]]]:
    """Characters of the sentences of passages in their documents, and their cosines; a passage without is one."""
    whole = [([(place.start, place.end)], [0.0]) for place in places]
    if result.batch.vectors is None or not len(keys):
        return whole
    vectors, scales, spans = (view.ragged(name, keys) for name in (SENTENCES, SCALES, SPANS))
    found = []
    for row, place in enumerate(places):
        cosines = (vectors.row(row).astype(np.float32) @ result.batch.vectors[0]) * scales.row(row).reshape(-1)
        held = [(place.start + int(a), place.start + int(b)) for a, b in spans.row(row)]
        found.append((held, cosines.astype(float).tolist()) if held else whole[row])
    return found


def _excerpt(stored: StoredDocument, start: int, end: int, score: float) -> Excerpt:
    content, lines = stored.document.content, Lines(stored.document.content)
    at = max(0, bisect_right([place.start for place in stored.passages], start) - 1)
    place = Passage(start, end, stored.passages[at].headings, lines.at(start) + 1, lines.at(end - 1) + 1)
    return Excerpt(replace(stored.document, text=content[start:end]), place, score)
