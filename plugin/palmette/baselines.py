"""What any learned method has to beat: BM25 over words, and the untuned encoder with exact search."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from palmette.errors import ConfigError, InputError, MissingExtraError
from palmette.search.best import best
from palmette.types import Document

if TYPE_CHECKING:
    from palmette.encoder import Encoder

__all__ = ["BM25", "EncoderBaseline", "Ranked"]

Floats = NDArray[np.float32]

BLOCK = 256
"""Queries scored at a time, so that the score matrix stays small."""
K1, B = 1.2, 0.75
"""Lucene's defaults: how soon repetition stops counting, how much length matters."""


class Ranked(NamedTuple):
    """For each query the ids and the scores of what was found, best first."""

    ids: list[list[str]]
    scores: list[Floats]


def _check(queries: Sequence[str], k: int) -> None:
    if isinstance(queries, str):
        raise InputError(
            f"queries must be a list of str, got one str: {queries!r:.80}. Put it in a list: [query]"
        )
    if k < 1:
        raise InputError(f"k must be at least 1, got {k!r}")


class _Baseline(ABC):
    """Ids, and the ranking of score matrices."""

    def __init__(self, documents: Sequence[Document]) -> None:
        if not documents:
            raise InputError(f"{type(self).__name__}: there are no documents; give at least one")
        self.ids = [document.key for document in documents]

    @abstractmethod
    def _score(self, queries: Sequence[str]) -> Iterator[Floats]:
        """[N] scores of each query."""

    def search(self, queries: Sequence[str], k: int = 10) -> Ranked:
        """The ``k`` best documents for each query; all of them when there are fewer."""
        _check(queries, k)
        found = Ranked([], [])
        for scores in self._score(queries):
            rows = best(scores, k)
            found.ids.append([self.ids[row] for row in rows.tolist()])
            found.scores.append(scores[rows])
        return found


class BM25(_Baseline):
    """BM25 (Lucene's formula, k1 = 1.2, b = 0.75) over stemmed words, by ``bm25s``.

    Args:
        documents: What is searched, by its text: of BEIR folders that is title and text.
        language: Of the stemmer.
        stem: Whether words are reduced to their stems.

    Raises:
        MissingExtraError: ``bm25s`` or ``PyStemmer`` is not installed.
    """

    def __init__(
        self, documents: Sequence[Document], *, language: str = "english", stem: bool = True
    ) -> None:
        super().__init__(documents)
        try:
            import bm25s
            import Stemmer
        except ImportError as error:
            raise MissingExtraError(error.name or "bm25s", "baselines", "The BM25 baseline") from error
        if language not in Stemmer.algorithms():
            raise ConfigError(
                f"BM25: no stemmer for {language!r}; languages: {', '.join(Stemmer.algorithms())}"
            )
        self._tokenize = bm25s.tokenize
        self._stemmer = Stemmer.Stemmer(language) if stem else None
        self._index = bm25s.BM25(method="lucene", k1=K1, b=B)
        shown = sys.stderr.isatty()
        words = self._words([document.content for document in documents], progress=shown)
        self._index.index(words, show_progress=shown, leave_progress=False)

    def _words(self, texts: Sequence[str], progress: bool = False) -> list[list[str]]:
        words: list[list[str]] = self._tokenize(
            list(texts),
            stopwords=[],
            stemmer=self._stemmer,
            return_ids=False,
            show_progress=progress,
            leave=False,
        )
        return words

    def _score(self, queries: Sequence[str]) -> Iterator[Floats]:
        for words in self._words(queries):
            yield self._index.get_scores(words) if words else np.zeros(len(self.ids), np.float32)


class EncoderBaseline(_Baseline):
    """The encoder as it is, and exact search by inner product.

    Args:
        encoder: Gives the vectors.
        documents: What is searched.
        vectors: [N, d] the documents' vectors, where they are known already.
    """

    def __init__(
        self,
        encoder: Encoder,
        documents: Sequence[Document],
        *,
        vectors: Floats | None = None,
        progress: bool | None = None,
    ) -> None:
        super().__init__(documents)
        shown = sys.stderr.isatty() if progress is None else progress
        if vectors is None:
            vectors = encoder.encode([document.content for document in documents], progress=shown)
        if vectors.shape != (len(documents), encoder.dimension):
            raise InputError(f"vectors must be {len(documents)} × {encoder.dimension}, got {vectors.shape}")
        self.encoder, self.vectors = encoder, vectors

    def _score(self, queries: Sequence[str]) -> Iterator[Floats]:
        for start in range(0, len(queries), BLOCK):
            yield from self.encoder.encode_queries(queries[start : start + BLOCK]) @ self.vectors.T
