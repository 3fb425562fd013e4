"""Words of a handful of documents are weighed as an index of them would."""

import pytest

from palmette.lexical.given import shares_among
from palmette.lexical.tokens import analyser_of
from palmette.store.local import LocalBackend
from support.stores import SPECS, doc, put

TEXTS = ["red owl", "the red red fox by the river", "an owl, an owl", "nothing", "… !?"]


@pytest.mark.parametrize("query", ["red owl", "the the fox", "unknown", ""])
def test_as_an_index_of_the_same_documents(query: str) -> None:
    found = shares_among(analyser_of("english"), query, TEXTS)
    with LocalBackend.in_memory(SPECS) as backend:
        put(backend, *(doc(f"d{place}", text) for place, text in enumerate(TEXTS)))
        with backend.read() as view:
            assert found.tolist() == view.shared(query, view.keys().tolist()).scores.tolist()
    if "owl" in query:
        assert found[0] == max(found) > found[2] > 0 == found[3]
