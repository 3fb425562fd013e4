"""Views of storage engines: candidates come from the engine, and are scored by the code that serves folders."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import Floats, Keys, Ragged, Rows
from palmette.errors import CorruptIndexError
from palmette.lexical.analyser import Analyser
from palmette.lexical.bm25 import QueryTerms, matches_of, query_terms, weights
from palmette.lexical.packed import parts_of, scores_of
from palmette.search.flat import ExactEngine
from palmette.search.plan import ArraySpec, Candidates, SearchPlan, WordMatches, stack_rows
from palmette.store.filters import Filter, Scoped, names_in, unknown_name
from palmette.store.memory import ArraySegment, execute
from palmette.store.protocols import View, find_array

MOST_LISTS = 1_000_000
"""Lists that an array can name."""
NO_KEYS: Keys = np.empty(0, np.int64)


class EngineView(View, Protocol):
    """A view whose engine finds passages that may be among the best.

    Their stored arrays and words are read and scored here, so that results equal a folder's to the bit.
    """

    _specs: Mapping[str, ArraySpec]
    analyser: Analyser
    _expected: tuple[SearchPlan, int, Keys] | None = None
    """Plan, ``k`` and candidates of the search that :meth:`expect` announced."""

    # -- what an engine does ---------------------------------------------------------------------------------

    def _find(self, plan: SearchPlan, k: int) -> Keys:
        """Find passages that include the ``k`` best of a plan of one question."""

    def _weigh(self, text: str, query: QueryTerms, k: int, find: bool) -> tuple[Floats, list[float], int, Keys]:
        """Weigh the terms of a query (:meth:`_scaled`).

        Returns the weights, in how many passages of the scope each term and each skipped word is, the number of
        these passages, and, to ``find`` them, passages that include the ``k`` best by words.
        """

    def _texts(self, query: QueryTerms, keys: Sequence[int] | Keys, outside: bool = False) -> tuple[list[str], Floats]:
        """Read the words of passages (:mod:`palmette.lexical.packed`), and the norms of their lengths.

        Passages that fail the filter raise NotFoundError, unless those ``outside`` it are asked for: they set scales.
        """

    def _stored_bytes(self, spec: ArraySpec, keys: Sequence[int]) -> tuple[Rows, bytes]:
        """Read a stored array of passages: the number of bytes of each [n], and all on end."""

    def _list_counts(self, array: str) -> Mapping[Any, int]:
        """Count the passages in each list of an array of list numbers."""

    def _names(self, outer: Filter | None) -> Sequence[str]:
        """List the metadata names of the documents that pass a scope."""

    def _occurs(self, outer: Filter | None, name: str) -> bool:
        """Return whether a document that passes a scope has metadata of a name."""
        return name in self._names(outer)

    def _damaged(self, key: int | None, reason: object) -> CorruptIndexError:
        """Make the error for a passage, or an index, that is not as it was written."""

    # -- candidates ------------------------------------------------------------------------------------------

    def candidates(self, plan: SearchPlan, k: int) -> Candidates:
        """Find candidates, and rank them from their stored arrays as a folder does."""
        for name in plan.arrays:
            find_array(self._specs, name)
        # 1. one question after the other
        if (count := len(plan.first.queries) // plan.group) > 1:
            each = [self.candidates(plan.one_query(row), k) for row in range(count)]
            rows = [
                (part.keys[row], part.scores[row], {name: array[row] for name, array in part.evidence.items()})
                for part in each
                for row in range(plan.group)
            ]
            return stack_rows(rows, each[0])
        # 2. passages that the engine finds, or has found already
        if self._expected is not None and self._expected[0] is plan and self._expected[1] == k:
            keys = self._expected[2]
        else:
            keys = self._find(plan, k) if plan.only is not None or len(self) else NO_KEYS
        # 3. ranked as a folder's
        segments = [(ArraySegment(keys, {name: self.rows(name, keys.tolist()) for name in plan.arrays}), None)]
        ranked = execute(plan, k, segments if len(keys) else [], ExactEngine())
        # 4. how many passages they were compared with
        visited = float(len(self) if plan.only is None else len(plan.only))
        if plan.lists is not None:
            sizes, chosen = np.append(self.list_sizes(plan.lists.array), 0), plan.lists.chosen
            chosen = np.where((chosen >= 0) & (chosen < len(sizes)), chosen, len(sizes) - 1)
            visited = min(visited, float(sizes[chosen].sum(axis=1).mean()))
        return replace(ranked, visited=visited)

    # -- arrays ----------------------------------------------------------------------------------------------

    def rows(self, array: str, keys: Sequence[int] | Keys) -> NDArray[np.generic]:
        """Rows of a stored array."""
        return self._array(find_array(self._specs, array), keys).values

    def ragged(self, array: str, keys: Sequence[int] | Keys) -> Ragged:
        """Rows of a ragged array."""
        return self._array(find_array(self._specs, array, ragged=True), keys)

    def _array(self, spec: ArraySpec, keys: Sequence[int] | Keys) -> Ragged:
        """Read a stored array, and raise for a passage whose rows or numbers palmette does not write."""
        passage_keys = np.asarray(keys, np.int64).reshape(-1).tolist()
        sizes, content = self._stored_bytes(spec, passage_keys)
        # 1. as many rows as its shape or the array beside it demands
        width = _bytes_of_a_row(spec)
        wrong = sizes % width != 0 if spec.ragged else sizes != width
        if spec.aligned:
            other = self._specs[spec.aligned]
            wrong |= sizes * _bytes_of_a_row(other) != width * self._stored_bytes(other, passage_keys)[0]
        if wrong.any():
            key = passage_keys[int(wrong.argmax())]
            raise self._damaged(key, f"its {spec.name} has another number of rows than was written")
        values = np.frombuffer(bytearray(content), spec.dtype).reshape(-1, *spec.shape)
        starts = np.concatenate([[0], np.cumsum(sizes // width)])
        # 2. finite numbers in their range
        good = np.isfinite(values) if values.dtype.kind == "f" else np.ones_like(values, bool)
        if spec.valid_range is not None:
            good &= (values >= spec.valid_range[0]) & (values <= spec.valid_range[1])
        if not good.all():
            row = int(good.all(axis=tuple(range(1, good.ndim))).argmin())
            key = passage_keys[int(np.searchsorted(starts, row, side="right")) - 1]
            raise self._damaged(key, f"its {spec.name} holds NaN, infinity or a number out of range")
        return Ragged(values, starts)

    def list_sizes(self, array: str) -> Rows:
        """Number of passages in each list."""
        counts = self._list_counts(find_array(self._specs, array).name)
        if not all(isinstance(number, int) and 0 <= number < MOST_LISTS for number in counts):
            raise self._damaged(None, f"{array} names lists outside 0 … {MOST_LISTS - 1}")
        sizes = np.zeros(1 + max(counts, default=-1), np.int64)
        sizes[list(counts)] = list(counts.values())
        return sizes

    # -- words -----------------------------------------------------------------------------------------------

    def words(self, text: str, k: int, only: Keys | None = None) -> WordMatches:
        """Find the ``k`` best passages by words, or score some."""
        query = query_terms(self.analyser, text)
        weight, document_frequencies, documents, found = self._weigh(text, query, k, only is None)
        keys = found if only is None else only
        scores = self._scores(query, weight, keys)
        if only is None:
            order = np.lexsort((keys, -scores))
            order = order[scores[order] > 0][:k]
            keys, scores = keys[order], scores[order]
        return matches_of(query, keys, scores, document_frequencies, documents)

    def word_parts(self, text: str, key: int) -> Floats:
        """[T] what each word of a text, and each pair, adds to a passage's score."""
        query = query_terms(self.analyser, text)
        weight, *_ = self._weigh(text, query, 1, False)
        parts: Floats = parts_of(query, weight, *self._texts(query, [key]))[0]
        return parts

    def _scores(self, query: QueryTerms, weight: Floats, keys: Keys, outside: bool = False) -> Floats:
        """[n] what all terms of a query add to the score of passages."""
        return scores_of(query, weight, *self._texts(query, keys, outside)) if len(keys) else np.empty(0, np.float32)

    def _scaled(
        self,
        query: QueryTerms,
        document_frequencies: Sequence[float],
        documents: int,
        best: Callable[[QueryTerms, Floats, float], Keys],
    ) -> Floats:
        """Weigh terms so that the reach of a query is a score of 1, or the best passage's sum if that is more.

        ``best(query, weights, reach)`` finds that passage, whether or not it has the quoted phrases.
        """
        weight, reach = weights(query, document_frequencies, documents)
        total = max(float(weight.sum()), 1e-12)
        scaled = np.asarray(weight / total, np.float32)
        free = query._replace(required=frozenset())
        scores = self._scores(free, scaled, best(free, scaled, reach / total), outside=True)
        factor = 1 / max(reach / total, *scores.tolist(), 1e-12)
        return np.asarray(scaled.astype(np.float64) * factor, np.float32)

    # -- filters ---------------------------------------------------------------------------------------------

    def _check_names(self, filter: Filter) -> None:
        """Raise for a metadata name that no document has; one in a scope is told of no others."""
        scoped = isinstance(filter, Scoped)
        for outer, level in filter.levels() if isinstance(filter, Scoped) else [(None, filter)]:
            for name in dict.fromkeys(names_in(level)):
                if self._occurs(outer, name):
                    continue
                names = self._names(outer)
                if outer is None or names:  # in a scope without documents nothing can be misspelt
                    near = [] if scoped and outer is None else get_close_matches(name, names, 3)
                    raise unknown_name(name, f" Did you mean {' or '.join(map(repr, near))}?" if near else "")


def _bytes_of_a_row(spec: ArraySpec) -> Any:
    return np.dtype(spec.dtype).itemsize * math.prod(spec.shape)
