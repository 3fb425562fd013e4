"""What a reader says: an answer, how sure it is, and where it stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from palmette.types import Document, Explanation, Part

__all__ = ["Answer", "Support"]


@dataclass(frozen=True)
class Support:
    """A passage that gives an answer.

    Attributes:
        passage: Its position among the passages given.
        document: The passage.
        start: The first character of the answer in the document's content.
        end: The one after its last.
        share: What this passage adds to the answer's confidence.
        sentence: The sentence around it.
    """

    passage: int
    document: Document
    start: int
    end: int
    share: float
    sentence: str

    @property
    def text(self) -> str:
        """The answer in this passage's own words."""
        return self.document.content[self.start : self.end]

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "passage": self.passage,
            "id": self.document.key,
            "text": self.text,
            "start": self.start,
            "end": self.end,
            "share": self.share,
            "sentence": self.sentence,
        }


@dataclass(frozen=True)
class Answer:
    """An answer, or none: then it is false, and its text is empty.

    Attributes:
        question: What was asked.
        text: The answer, in the words of the passage that says it best.
        confidence: Its probability: what all passages that say the same add up to. Of no answer, the probability
            that the passages have none.
        supports: The passages that say it, the one that adds most first.
        alternatives: The next best answers, each with its confidence; where none was given, the best of them first.
        no_answer: The probability that the passages have none.
    """

    question: str
    text: str = ""
    confidence: float = 1.0
    supports: Sequence[Support] = ()
    alternatives: Mapping[str, float] = field(default_factory=dict)
    no_answer: float = 1.0

    def __bool__(self) -> bool:
        return bool(self.supports)

    def __str__(self) -> str:
        return self.text

    @property
    def document(self) -> Document | None:
        """The passage that adds most, if there is an answer."""
        return self.supports[0].document if self.supports else None

    @property
    def sentence(self) -> str:
        """The sentence around the answer in that passage; empty without an answer."""
        return self.supports[0].sentence if self.supports else ""

    def explain(self) -> Explanation:
        """Which passages say it, and in which sentence: parts that add up to the confidence."""
        parts = [
            Part(support.document.key, support.share, {"sentence": support.sentence, "text": support.text})
            for support in self.supports
        ]
        if not parts:
            text = f"no answer in these passages ({self.confidence:.0%})"
            return Explanation(self.confidence, [Part("no answer", self.confidence)], text)
        best, more = self.supports[0], len(parts) - 1
        others = f" and {more} more" if more else ""
        text = f"{self.text!r} ({self.confidence:.0%}) from {best.document.key}{others}: {best.sentence!r}"
        return Explanation(self.confidence, parts, text)

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "question": self.question,
            "answer": self.text,
            "confidence": self.confidence,
            "supports": [support.to_dict() for support in self.supports],
            "alternatives": dict(self.alternatives),
            "no_answer": self.no_answer,
        }
