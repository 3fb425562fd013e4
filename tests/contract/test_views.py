"""Every method runs over any storage that fills the required half of the seam, and finds what it finds locally."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from palmette import Index, Model
from palmette.errors import InputError
from palmette.index.results import encode_query_batch
from palmette.ranking.arrays import stored_arrays
from palmette.ranking.score import probability
from palmette.store.memory import ArrayView
from palmette.store.protocols import View
from support.measured import score_scales_of
from support.plain_view import PlainView
from support.stores import key_of
from support.tiny import documents

QUERIES = ["where does the red owl live?", "white hen", "golden bee sings"]


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
        batch = encode_query_batch(index.model, QUERIES, how, lexical, index.model.sentences)
        result = batch.search(plain, 7, partial(score_scales_of, index))
        found, chances = result.candidates, probability(result.logits)
        expected = index.search(QUERIES, k=7, lexical=lexical, **how)
        for row, hits in enumerate(expected):
            held = found.keys[row] >= 0
            assert plain.ids(found.keys[row][held].tolist()) == [hit.id for hit in hits], (how, row)
            assert chances[row][held].tolist() == pytest.approx([hit.score for hit in hits], abs=2e-5)
        key, query = int(found.keys[0, 0]), {name: array[:1] for name, array in batch.arrays.items()}
        own = {spec.name: plain.rows(spec.name, [key]) for spec in model.arrays()}
        evidence = {name: array[0, 0] for name, array in found.evidence.items()}
        explained = model.explain(query, own, options, {**evidence, "document": given[key - 10]})
        score = evidence.get("method_score", found.scores[0, 0])
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
    assert (len(view), key_of(view, given[1].key), key_of(view, "nobody")) == (3, 1, None)
    assert view.ids([2, 0]) == [given[2].key, given[0].key]
    assert view.documents([1]) == given[1:2]
    with pytest.raises(InputError, match="build an index"):
        view.words("owl", 3)
