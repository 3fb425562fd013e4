"""Hits, and why they matched: parts that add up to the score, highlights, surroundings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from palmette.errors import PalmetteError, shown
from palmette.types.citations import Citation, cite
from palmette.types.documents import Document, Metadata, Passage

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Part:
    """One summand of a score: what it is, what it adds, and the evidence."""

    name: str
    value: float
    detail: Metadata = field(default_factory=dict)


@dataclass(frozen=True)
class Explanation:
    """Why a document scored what it did; ``text`` says it in words.

    A hit's ``score`` is a probability, and its ``parts`` add up to the log-odds of it. ``method`` explains the score
    of the method alone, whose parts add up to that score itself.
    """

    score: float
    parts: Sequence[Part]
    text: str
    detail: Metadata = field(default_factory=dict)
    method: Explanation | None = None
    brief: str = ""
    """What a hit's explanation quotes of a method's."""

    def to_dict(self) -> dict[str, Any]:
        """The explanation as JSON values."""
        parts = [
            {"name": p.name, "value": p.value} | ({"detail": dict(p.detail)} if p.detail else {}) for p in self.parts
        ]
        facts = {"score": self.score, "text": self.text, "parts": parts, "detail": dict(self.detail)}
        return facts if self.method is None else {**facts, "method": self.method.to_dict()}

    def _repr_html_(self) -> str:
        """The parts as a table, for notebooks."""
        rows = "".join(f"<tr><td>{escape(p.name)}</td><td>{p.value:.4f}</td></tr>" for p in self.parts)
        return f"<p>{escape(self.text)}</p><table>{rows}<tr><th>score</th><th>{self.score:.4f}</th></tr></table>"

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Highlights:
    """Characters of a hit's content: those that answer best, and of the query's words."""

    sentence: tuple[int, int] | None
    """The best sentence, a table's row, or the line of an identifier."""
    words: Sequence[tuple[int, int]] = ()
    around: tuple[int, int] | None = None
    """The sentence with its neighbours, in a table with the header: at most 60 words, or the sentence alone."""
    line: int | None = None
    """Line of the sentence in the whole document, from 1."""

    def to_dict(self) -> dict[str, Any]:
        """The places as JSON values."""
        places = {"sentence": self.sentence and list(self.sentence), "words": [list(w) for w in self.words]}
        return {**places, "around": self.around and list(self.around), "line": self.line}


class SentenceVectors(NamedTuple):
    """Vectors of a passage and of its sentences as an index stores them, of any length."""

    encoder: str
    """Fingerprint of the encoder."""
    spans: NDArray[np.int32]
    """[S, 2], the first character of each sentence in the passage's content, and the one after its last."""
    vectors: NDArray[np.int8]
    """[S, d]"""
    whole: NDArray[Any] | None
    """[d], the passage's; ``None`` where the method stores others than the encoder's."""


_KEPT = ("document", "score", "evidence", "sentence", "passage", "others", "copies")
"""What a copied or pickled hit keeps."""


@dataclass(frozen=True)
class Hit:
    """A passage found, and the probability that it is relevant."""

    document: Document
    """The passage's text, with the id and the metadata of its document; ``index.get`` reads the whole document."""
    score: float
    """0 … 1, the same for every method; higher is better."""
    explainer: Callable[[], Explanation] | None = field(default=None, repr=False, compare=False)
    evidence: Mapping[str, float] = field(default_factory=dict, repr=False, compare=False)
    """What the score is made of: ``method_score``; ``best_sentence``, its cosine; ``word_share``, of the query's weight
    in words; and ``expected_word_share``, of an unrelated document."""
    sentence: tuple[int, int] | None = field(default=None, repr=False, compare=False)
    """Characters of the document's content that are its best sentence."""
    finder: Callable[[], Highlights] | None = field(default=None, repr=False, compare=False)
    passage: Passage | None = field(default=None, repr=False)
    """Where the passage stands in its document; ``None`` of a hit that no index found."""
    others: Sequence[Hit] = field(default=(), repr=False)
    """Further passages of the same document, best first, in a search with ``group_by="document"``."""
    copies: Sequence[Citation] = field(default=(), repr=False)
    """Citations of passages with the same text, which a search with ``distinct`` shows once."""
    vectors: SentenceVectors | None = field(default=None, repr=False, compare=False)
    """Vectors of its sentences, so that a reader need not encode it; ``None`` where the search used none."""

    @property
    def id(self) -> str:
        """The document's id."""
        return self.document.key

    @property
    def text(self) -> str:
        """The passage."""
        return self.document.content

    @property
    def citation(self) -> Citation:
        """Place of the passage; as a text, ``guide.md › Pruning › Cherries, lines 40–52``."""
        return cite(self.document, self.passage)

    @property
    def highlights(self) -> Highlights:
        """Places of the best sentence, row or line, and of the query's words."""
        return Highlights(self.sentence) if self.finder is None else self.finder()

    def explain(self) -> Explanation:
        """Why this document matched (computed when asked)."""
        if self.explainer is None:
            raise PalmetteError(
                f"hit {shown(self.id)} has lost its index (it was copied or pickled); use index.explain(query, id)"
            )
        return self.explainer()

    def to_dict(self, *, explain: bool = False) -> dict[str, Any]:
        """The hit as JSON values; ``explain`` adds why it matched."""
        document = self.document
        facts = {"id": self.id, "score": self.score, "text": document.content, "metadata": dict(document.metadata)}
        facts |= {"evidence": dict(self.evidence), "highlights": self.highlights.to_dict()}
        if self.passage is not None and (self.passage.count > 1 or self.passage.headings):
            facts["passage"] = self.passage.to_dict()
        facts |= {"citation": str(self.citation), "place": self.citation.to_dict()}
        if self.others:
            facts["others"] = [other.to_dict(explain=explain) for other in self.others]
        if self.copies:
            facts["copies"] = [str(copy) for copy in self.copies]
        return facts | ({"explanation": self.explain().to_dict()} if explain else {})

    def __getstate__(self) -> dict[str, Any]:
        state = {name: getattr(self, name) for name in _KEPT}
        return {**state, "explainer": None, "finder": partial(replace, self.highlights)}
