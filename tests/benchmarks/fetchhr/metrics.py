"""What each layer adds, and whether a question's rarest word is found (Q questions, N documents, k places)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from palmette.lexical.analyser import LANGUAGE, analyser_of

__all__ = ["CriticalWords", "support"]

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


def support(holds: Bools, layer: Ints) -> dict[int, float]:
    """Documents with the answer that each layer found and no earlier one had, per question (the paper's figure 4).

    Args:
        holds: [Q, k] whether a retrieved document holds the answer.
        layer: [Q, k] the layer that found it.
    """
    return {int(n): float((holds & (layer == n)).sum(axis=1).mean()) for n in np.unique(layer)}


class CriticalWords:
    """Figure 1 as a metric: a question's critical word is the one that the fewest documents have.

    Words are compared without their endings. One that no document has can be found by nobody, and does not count;
    neither does one in more than ``common`` of the documents (the, of, what).

    Args:
        documents: The texts that are searched.
        language: Whose endings are cut off.
        common: Share of the documents from which on a word says nothing.
    """

    def __init__(
        self, documents: Sequence[str], *, language: str | None = LANGUAGE, common: float = 0.1
    ) -> None:
        self._analyser = analyser_of(language)
        self._rows: dict[int, set[int]] = {}  # word → documents
        for row, text in enumerate(documents):
            for word in self._analyser.words(text):
                self._rows.setdefault(word.term, set()).add(row)
        self._most = common * len(documents)

    def of(self, question: str) -> list[tuple[str, int]]:
        """The content words of a question with how many documents have them, the rarest first."""
        found = {word.text: len(self._rows.get(word.term, ())) for word in self._analyser.words(question)}
        return sorted(
            ((word, n) for word, n in found.items() if 0 < n <= self._most), key=lambda pair: pair[1]
        )

    def measure(self, questions: Sequence[str], retrieved: Sequence[Sequence[int]]) -> dict[str, float]:
        """Means over the questions that have content words.

        Args:
            questions: [Q].
            retrieved: Rows of the documents found for each.

        Returns:
            ``occurrence``: documents with the critical word, among those found; ``critical``: share of questions for
            which there is one; ``coverage``: share of a question's content words that some found document has.
        """
        occurrence, coverage = [], []
        for question, rows in zip(questions, retrieved, strict=True):
            terms = {word.text: word.term for word in self._analyser.words(question)}
            found = set(rows)
            counts = [len(self._rows[terms[word]] & found) for word, _ in self.of(question)]
            if counts:
                occurrence.append(counts[0])
                coverage.append(sum(count > 0 for count in counts) / len(counts))
        if not occurrence:
            return {"occurrence": 0.0, "critical": 0.0, "coverage": 0.0}
        return {
            "occurrence": float(np.mean(occurrence)),
            "critical": float(np.mean(np.array(occurrence) > 0)),
            "coverage": float(np.mean(coverage)),
        }
