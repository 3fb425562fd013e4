"""Every method finds in every storage what it finds in memory, with the same scores and reasons, to the bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palmette import Document, Index, Model
from palmette.store.memory import ArrayView
from support.places import KINDS, places
from support.tiny import documents, many_documents

QUERIES = ["golden owl and redcat", "blackhen", '"cat dog"', "where do the bluebee and the white cow sing?"]
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "tree": [{}, {"level": 2}],
    "fields": [{}, {"by": "best"}, {"by": "aggregate"}],
    "layers": [{}, {"order": "layer"}],
}
WAYS: list[dict[str, Any]] = [{}, {"filter": {"n": {"$lt": 5}}}, {"lexical": 0, "sentences": False}, {"lexical": 1}]


@pytest.fixture(scope="module", params=["toy", *(kind for kind in KINDS if kind != "folder")])
def engine(request: pytest.FixtureRequest) -> Iterator[Callable[[], str | Path]]:
    """Names of new places of a storage engine; one compares everything with everything."""
    with places(request.param) as name:
        yield name


def test_an_engine_finds_what_is_found_in_memory(model: Model, engine: Callable[[], str | Path]) -> None:
    """More documents than any shortlist has: the engine itself lists a part of them."""
    here, where = Index.build(many_documents(), model), str(engine())
    levels = "?levels=2" if model.method == "tree" and where.startswith("qdrant") else ""
    with here.copy_to(f"{where}{levels}") as there:
        for how in OPTIONS.get(model.method, [{}]):
            for way in WAYS:
                if not way.get("lexical") or model.lexical_key(model.search_options(how)) is not None:
                    assert there.search(QUERIES, 30, **how, **way) == here.search(QUERIES, 30, **how, **way), (how, way)
        for condition in ({"n": 3}, {"n": {"$in": [1, 2, 5]}}):  # words are counted in the scope
            assert there.filtered(condition).search(QUERIES, 20) == here.filtered(condition).search(QUERIES, 20)
        of_there, of_here = (index.search(QUERIES[0])[0].explain().parts for index in (there, here))
        assert of_there == of_here
        changed = [Document("3", "a submarine under the golden ice"), Document("new", "the golden submarine")]
        for index in (here, there):
            index.upsert(changed, delete=["7", "8"])
        assert there.search([*QUERIES, "submarine"], 9) == here.search([*QUERIES, "submarine"], 9)
        there.verify()


def test_given_documents_are_scored_as_in_a_search_of_all(model: Model) -> None:
    """Plans with ``only``, over arrays in memory."""
    given, options = documents(), model.search_options({})
    view = ArrayView({name: np.asarray(array) for name, array in model.encode_documents(given).items()}, given)
    queries = model.encode_queries(["where does the red owl live?"], options)
    every = model.search(view, queries, 48, options).one_query(0)
    some = np.sort(every.keys[0][::5])
    plan = model.plan(queries, len(some), options, view).one_query(0).among(some)
    found = model.execute(view, plan, len(some), options).one_query(0)
    values = dict(zip(every.keys[0].tolist(), every.scores[0].tolist(), strict=True))
    assert set(found.keys[0].tolist()) <= {int(key) for key in some}
    assert found.scores[0].tolist() == pytest.approx([values[key] for key in found.keys[0].tolist()], abs=1e-5)
