"""Every method runs over any storage that fills the required half of the seam, and finds what it finds locally."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from palmette import Document, Index, Model
from palmette.arrays import Ragged, as_floats
from palmette.calibration import stored_arrays
from palmette.errors import InputError
from palmette.evidence import probability
from palmette.index.search import read_queries
from palmette.lexical.analyser import LANGUAGE, analyser_of
from palmette.lexical.bm25 import WordCollection
from palmette.search.plan import Candidates, Score, SearchPlan, View, WordMatches, rescore_rows
from palmette.search.view import ArrayView
from support.tiny import documents

QUERIES = ["where does the red owl live?", "white hen", "golden bee sings"]


class PlainView:
    """Documents and arrays in lists: compares everything with everything, and leaves rescoring to the caller.

    Keys are 10 more than places, so that nobody takes one for the other.
    """

    def __init__(self, given: Sequence[Document], arrays: Mapping[str, Any]) -> None:
        self.given, self.arrays = given, arrays
        self.collection = WordCollection(analyser_of(LANGUAGE), [document.all_text for document in given])

    def __len__(self) -> int:
        return len(self.given)

    def keys(self) -> NDArray[np.int64]:
        return np.arange(len(self.given)) + 10

    def rows(self, array: str, keys: Sequence[int]) -> NDArray[Any]:
        return self.arrays[array][np.asarray(keys, np.int64) - 10]

    def ragged(self, array: str, keys: Sequence[int]) -> Ragged:
        every = self.arrays[array]
        rows = [every.row(key - 10) for key in keys]
        return Ragged(np.concatenate(rows), np.cumsum([0, *map(len, rows)]))

    def note(self, name: str) -> None:
        return None

    def documents(self, keys: Sequence[int]) -> list[Document]:
        return [self.given[key - 10] for key in keys]

    def ids(self, keys: Sequence[int]) -> list[str]:
        return [document.key for document in self.documents(keys)]

    def keys_of(self, ids: Sequence[str]) -> dict[str, int]:
        return {document.key: place + 10 for place, document in enumerate(self.given) if document.key in ids}

    def key_of(self, id: str) -> int | None:
        return self.keys_of([id]).get(id)

    def wall_keys(self) -> None:
        return None

    def word_parts(self, text: str, key: int) -> NDArray[np.float32]:
        return self.words(text, 0, only=np.array([key])).scores  # one part: all words together

    def list_sizes(self, array: str) -> NDArray[np.int64]:
        return np.bincount(self.arrays[array].ravel())

    def words(self, text: str, k: int, only: NDArray[np.int64] | None = None) -> WordMatches:
        matched = self.collection.matches(text)
        shares = matched.scores  # one column: all words together
        keys = only
        if keys is None:
            order = np.lexsort((np.arange(len(shares)), -shares))
            keys = order[shares[order] > 0][:k] + 10
        return WordMatches([text], shares[keys - 10], keys, rarity=matched.rarity)

    def expect(self, *search: Any) -> None:
        pass

    def candidates(self, plan: SearchPlan, k: int) -> Candidates:
        keys = self.keys() if plan.only is None else plan.only
        scores = self._table(plan.first, keys)  # [Q, N]
        allowed = np.ones(scores.shape, bool)
        if plan.lists is not None:
            own = self.rows(plan.lists.array, keys)
            allowed = np.array([np.isin(own, row[row >= 0]).any(axis=1) for row in plan.lists.chosen])
        scores = np.where(allowed, scores, -np.inf).astype(np.float32)
        depth = min(len(keys), k if plan.rescore is None else max(k, plan.fetch or k))
        order = np.array([np.lexsort((keys, -row))[:depth] for row in scores])
        best = np.take_along_axis(scores, order, 1)
        found = Candidates(np.where(np.isinf(best), -1, keys[order]), best, float(allowed.sum(axis=1).mean()))
        if plan.first.part_weights is not None:
            found = rescore_rows(self, SearchPlan(plan.first, rescore=plan.first), found, depth)
        return found if plan.rescore is None else rescore_rows(self, plan, found, k)

    def _table(self, score: Score, keys: NDArray[np.int64]) -> NDArray[np.float64]:
        data, queries = self.rows(score.array, keys), score.queries.astype(np.float64)
        if score.part_weights is not None:
            scales = 1 if score.scales is None else self.rows(score.scales, keys)[..., None]
            parts = np.einsum("qd,nfd->qnf", queries, data * scales) * score.part_weights
            return parts[..., score.part_weights > 0].max(axis=2)
        data = as_floats(data).astype(np.float64)
        data = data.reshape(len(keys), -1, score.fold).sum(axis=2)
        if score.metric == "overlap":
            return np.minimum(data[None], queries[:, None]).sum(axis=2)
        return queries @ data.T


SEARCHES: dict[str, list[dict[str, Any]]] = {
    "tree": [{}, {"level": 2}],
    "fields": [{}, {"by": "best"}, {"by": "aggregate"}],
    "layers": [{}, {"order": "layer"}],
}


@pytest.mark.parametrize("lexical", [0, 0.4])
def test_a_plain_view_gives_the_same_hits(model: Model, lexical: float) -> None:
    given = documents()
    plain: View = PlainView(given, stored_arrays(model, given, model.sentences))
    index = Index.build(given, model)
    for how in SEARCHES.get(model.method, [{}]):
        options = model.search_options(how)
        if lexical and model.lexical_key(options) is None:  # these options do not rank by score
            continue
        batch = read_queries(index.model, QUERIES, how, lexical, index.model.sentences)
        result = batch.search(plain, 7, index._units)
        found, chances = result.found, probability(result.logits)
        expected = index.search(QUERIES, k=7, lexical=lexical, **how)
        for row, hits in enumerate(expected):
            held = found.keys[row] >= 0
            assert plain.ids(found.keys[row][held].tolist()) == [hit.id for hit in hits], (how, row)
            assert chances[row][held].tolist() == pytest.approx([hit.score for hit in hits], abs=2e-5)
        key, query = int(found.keys[0, 0]), {name: array[:1] for name, array in batch.arrays.items()}
        own = {spec.name: plain.rows(spec.name, [key]) for spec in model.arrays()}
        evidence = {name: array[0, 0] for name, array in found.evidence.items()}
        explained = model.explain(query, own, options, {**evidence, "document": given[key - 10]})
        score = evidence.get("own", found.scores[0, 0])
        assert sum(part.value for part in explained.parts) == pytest.approx(score, abs=1e-5)


def test_given_documents_are_scored_as_in_a_search_of_all(model: Model) -> None:
    """Plans with ``only``, over arrays in memory and over the plain view."""
    given, options = documents(), model.search_options({})
    arrays = {name: np.asarray(array) for name, array in model.encode_documents(given).items()}
    queries = model.encode_queries(QUERIES[:1], options)
    for view, first in ((ArrayView(arrays, given), 0), (PlainView(given, arrays), 10)):
        every = model.search(view, queries, 48, options).one_query(0)
        some = np.sort(every.keys[0][::5])
        plan = model.plan(queries, len(some), options, view).one_query(0).among(some)
        found = model.execute(view, plan, len(some), options).one_query(0)
        values = dict(zip(every.keys[0].tolist(), every.scores[0].tolist(), strict=True))
        assert set(found.keys[0].tolist()) <= {int(key) for key in some}
        assert found.scores[0].tolist() == pytest.approx([values[key] for key in found.keys[0].tolist()], abs=1e-5)
        assert found.keys.min(initial=first) >= first


def test_arrays_in_memory_name_their_documents_and_have_no_words() -> None:
    given = documents()[:3]
    view = ArrayView({"v": np.eye(3, dtype=np.float32)}, given)
    assert (len(view), view.key_of(given[1].key), view.key_of("nobody")) == (3, 1, None)
    assert view.ids([2, 0]) == [given[2].key, given[0].key]
    assert view.documents([1]) == given[1:2]
    with pytest.raises(InputError, match="build an index"):
        view.words("owl", 3)
