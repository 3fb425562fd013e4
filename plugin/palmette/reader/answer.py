"""Answers: from scored candidates to a text, its confidence and the passages that support it.

Candidates share one softmax with "no answer", and the same words in several places are one answer::

    candidate            passage    probability     answer             confidence
    "the red owl"        2          .40             the red owl        .40 + .25 = .65, by passages 2 and 0
    "The red owl"        0          .25             a blue fox         .20, the next best
    "a blue fox"         1          .20
    no answer            –          .15             1 − .15 reaches the threshold of .5: an answer is given
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import Rows
from palmette.data.metrics import normalise
from palmette.encoder.base import readable
from palmette.encoder.sentences.splitting import split_sentences
from palmette.reader.blocks import SHORTEST_ANSWER, complete, trimmed, with_neighbours
from palmette.reader.rows import record_of, row_answer, row_around
from palmette.reader.scores import words_of
from palmette.sources.blocks import labels_of
from palmette.sources.cutting import kind_of_text
from palmette.types import Citation, Document, Explanation, Part, Passage, cite

ALTERNATIVES = 3
"""Next best answers that an answer lists."""
CONFIDENCE = (2.0, 0.9, -1.75)
"""Weights of the question's words and of the lead, and bias, of :func:`calibrated`."""
LEAD_MOST = 3.0
"""Log-odds of a lead over the other passages beyond which it says no more."""
EVEN, LIKELY = 0.45, 0.7
"""Fitted probabilities between which an answer is as likely as not, and shown just below a half."""


@dataclass(frozen=True)
class Support:
    """A passage that gives an answer."""

    passage: int
    """Position among the passages given."""
    document: Document
    start: int
    """First character of the answer in the document's content."""
    end: int
    """Character after its last."""
    share: float
    """Share of the answer's confidence."""
    sentence: str
    """Sentence around the answer."""
    place: Passage | None = None
    """Where the passage stands in its document; ``None`` of a passage that no search found."""

    @property
    def citation(self) -> Citation:
        """Place of the answer; as a text, ``guide.md › Pruning, lines 40–52``."""
        return cite(self.document, self.place, (self.start, self.end))

    @property
    def text(self) -> str:
        """Answer in this passage's own words."""
        return self.document.content[self.start : self.end]

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        names = ("passage", "text", "start", "end", "share", "sentence")
        facts = {"id": self.document.key, "citation": str(self.citation), "place": self.citation.to_dict()}
        return facts | {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Answer:
    """An answer, or none: then it is false, and its text is empty."""

    question: str
    text: str = ""
    """Answer in the words of its best passage; of a row of a table or record ``name: column value``."""
    confidence: float = 0.0
    """Probability that the answer is right; 0 without an answer."""
    supports: Sequence[Support] = ()
    """Passages that say it, the one that adds most first."""
    alternatives: Mapping[str, float] = field(default_factory=dict)
    """Next best answers, each with its confidence."""
    no_answer: float = 1.0
    """Probability that the passages have no answer."""

    def __bool__(self) -> bool:
        return bool(self.supports)

    def __str__(self) -> str:
        return self.text

    @property
    def document(self) -> Document | None:
        """Passage that adds most, if there is an answer."""
        return self.supports[0].document if self.supports else None

    @property
    def sentence(self) -> str:
        """Sentence around the answer in that passage; empty without an answer."""
        return self.supports[0].sentence if self.supports else ""

    def explain(self) -> Explanation:
        """Passages and sentences that say it: parts that add up to the confidence."""
        if not self.supports:
            text = f"no answer in these passages ({self.no_answer:.0%})"
            return Explanation(self.no_answer, [Part("no answer", self.no_answer)], text)
        parts = [Part(s.document.key, s.share, {"sentence": s.sentence, "text": s.text}) for s in self.supports]
        others = f" and {len(parts) - 1} more" if len(parts) > 1 else ""
        source = f"{parts[0].name}{others}: {self.sentence!r}"
        return Explanation(self.confidence, parts, f"{self.text!r} ({self.confidence:.0%}) from {source}")

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "question": self.question,
            "answer": self.text,
            "confidence": self.confidence,
            "supports": [support.to_dict() for support in self.supports],
            "alternatives": dict(self.alternatives),
            "no_answer": self.no_answer,
        }


@dataclass(frozen=True)
class AnswerCandidates:
    """Possible answers of one question, with probabilities beside that of "no answer"."""

    places: Rows
    """[C, 3] position of the passage, first character, and character after the last."""
    shares: NDArray[np.float64]
    """[C] probabilities; with ``none`` and all that was not kept they add up to 1."""
    none: float
    """Probability of "no answer"."""

    @classmethod
    def of(cls, places: Rows, scores: NDArray[np.float64], total: float) -> AnswerCandidates:
        """Order candidates by score [C]; ``total`` is log(1 + Σ exp) of all scores."""
        order = np.argsort(-scores, kind="stable")
        return cls(places[order], np.exp(scores[order] - total), float(np.exp(-total)))


def answer_of(question: str, candidates: AnswerCandidates, documents: Sequence[Document], threshold: float) -> Answer:
    """Most probable answer; none where the probability that there is one is below the threshold."""
    # 1. Candidates that say the same are one answer, whose probability is their sum.
    places, none = candidates.places.tolist(), candidates.none
    texts = [documents[passage].content[start:end] for passage, start, end in places]
    groups: dict[str, list[int]] = {}  # equal answers, the most probable place first
    for at, text in enumerate(texts):
        if said := normalise(readable(text)):  # as the model read it: half an emoji says nothing
            groups.setdefault(said, []).append(at)
    shares = {said: float(candidates.shares[rows].sum()) for said, rows in groups.items()}
    # 2. The best answer, and the next best ones; without one where "no answer" is too probable.
    ranked = sorted(groups, key=lambda said: -shares[said])
    best = ranked.pop(0) if ranked and 1 - none >= threshold else None
    others = {texts[groups[said][0]]: shares[said] for said in ranked[:ALTERNATIVES]}
    if best is None:
        return Answer(question, alternatives=others, no_answer=none)
    # 3. Each passage that says it supports it, by its share of the probability and with the sentences around.
    by_passage: dict[int, list[int]] = {}
    for at in groups[best]:
        by_passage.setdefault(places[at][0], []).append(at)
    supports = []
    for passage, rows in by_passage.items():
        (_, start, end), content = places[rows[0]], documents[passage].content
        spans = split_sentences(content, SHORTEST_ANSWER)
        around = [span for span in spans if span[0] < end and span[1] > start] or [(start, end)]
        first, last = trimmed(content, labels_of(content), around[0][0], around[-1][1])
        sentence = content[min(first, start) : max(last, end)]
        share = float(candidates.shares[rows].sum())
        supports.append(Support(passage, documents[passage], start, end, share, sentence))
    supports.sort(key=lambda support: -support.share)
    return Answer(question, texts[groups[best][0]], shares[best], tuple(supports), others, none)


def calibrated(answer: Answer, candidates: AnswerCandidates) -> Answer:
    """Return a sentence reader's answer with the probability that it is right.

    A share of the softmax is no such probability: one question has many sentences. Two things tell right from wrong:
    the share of the question's words that the sentence has, and its lead over the best sentence of the other
    passages. Their weights are fitted on 620 questions of six sets, of which 38 to 71 % were answered
    right. So a fitted .6 is right in one collection and wrong in the next, and half and more is said from .7 on:
    with each set left out the error is .08, and 5 % of the answers are wrong at half and more
    (benchmarks/results/answers.md).
    """
    if not answer.supports or not answer.confidence:
        return answer
    # 1. The share of the question's words, and the lead; none over passages that there are not.
    asked = words_of(answer.question)
    common = len(asked & words_of(answer.sentence)) / max(1, len(asked))
    own = np.isin(candidates.places[:, 0], [support.passage for support in answer.supports])
    shares = [float(candidates.shares[rows].max(initial=0.0)) for rows in (own, ~own)]
    lead = min(LEAD_MOST, float(np.log(shares[0] / shares[1]))) if min(shares) > 0 else 0.0
    # 2. The fitted probability, with what is as likely as not below a half.
    odds = float(np.dot(CONFIDENCE, (common, lead, 1.0)))
    confidence = float(np.interp(1 / (1 + np.exp(-odds)), (0, EVEN, LIKELY, 1), (0, EVEN, 0.5, 1)))
    factor = confidence / answer.confidence
    supports = tuple(replace(support, share=support.share * factor) for support in answer.supports)
    alternatives = {text: share * factor for text, share in answer.alternatives.items()}
    return replace(answer, confidence=confidence, supports=supports, alternatives=alternatives)


def with_places(answer: Answer, passages: Sequence[Any]) -> Answer:
    """Return an answer that cites the passages which are hits of a search."""
    places = [getattr(passage, "passage", None) for passage in passages]
    supports = tuple(replace(support, place=places[support.passage]) for support in answer.supports)
    return replace(answer, supports=supports)


def with_blocks(answer: Answer) -> Answer:
    """Return an answer of sentences with the code, list or table that each announces, and what stands around it.

    Of a table or of records the answer is one row, with the columns that the question asks for.
    """
    supports, text = [], ""
    for support in answer.supports:
        content, start, end, sentence = support.document.content, support.start, support.end, support.sentence
        record, row = record_of(support.document), row_around(content, answer.question, start, end)
        if record:
            start, end, said = 0, len(content), row_answer(answer.question, *record)
        elif row:
            start, end, said = *row[:2], row_answer(answer.question, *row[2:])
            sentence = content[start:end]
        else:
            kind = "rst" if kind_of_text(support.document) == "rst" else "markdown"  # as others are converted to it
            start, end = with_neighbours(content, *complete(content, start, end), kind)
            start, end = trimmed(content, labels_of(content), start, end)
            said = content[start:end]
        supports.append(replace(support, start=start, end=end, sentence=sentence))
        text = text or said or content[start:end]
    return replace(answer, text=text, supports=tuple(supports))
