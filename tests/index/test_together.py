"""Several texts that are one query."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from palmette import Model
from support import tiny
from support.alone import Index

TEXTS = ("where does the red owl live?", "The blue hen sings.")


@pytest.mark.parametrize("make", [tiny.tree, tiny.fields, tiny.layers, tiny.paths])
def test_scores_are_those_of_the_mean_of_what_the_model_makes_of_each(make: Callable[[], Model]) -> None:
    model = make()
    index = Index.build(tiny.documents(), model)
    options = model.search_options({})
    made = model.encode_queries(list(TEXTS), options)
    mean = {name: array.mean(axis=0, keepdims=True) for name, array in made.items()}
    with index.backend.read() as view:
        expected = model.search(view, mean, 7, options)
        names = view.ids(expected.keys[0].tolist())
    [together, alone] = index.search([TEXTS, TEXTS[0]], 7, lexical=0)
    assert [hit.id for hit in together] == names
    np.testing.assert_allclose([hit.score for hit in together], expected.scores[0], rtol=1e-6)
    assert [hit.id for hit in alone] == [hit.id for hit in index.search(TEXTS[0], 7, lexical=0)]
    [(one,)] = index.search([TEXTS], 1)
    assert index.explain(TEXTS, one.id, lexical=0).score == pytest.approx(one.score, abs=1e-6)
    assert one.explain().score == pytest.approx(one.score, abs=1e-6)
