"""The per-layer options as attributes of its retriever."""

import pytest
from llama_index.core.schema import TextNode

from llama_index.retrievers.palmette import PalmetteQuery, PerLayerRetriever
from palmette.errors import PalmetteError
from support.tiny import documents, layers


@pytest.fixture(scope="module")
def retriever() -> PerLayerRetriever:
    nodes = [TextNode(id_=d.key, text=d.text) for d in documents()]
    return PerLayerRetriever.from_documents(nodes, layers(), similarity_top_k=6, order="layer", explain=True)


def finders(retriever: PerLayerRetriever, **options: object) -> list[int]:
    found = retriever.retrieve(PalmetteQuery("where does the red owl live?", **options))
    return [node.explanation.detail["found_by"] for node in found]  # type: ignore[attr-defined]


def test_options_are_attributes_and_may_be_asked_for(retriever: PerLayerRetriever) -> None:
    assert retriever.order == "layer"
    assert finders(retriever) == [1, 1, 2, 2, 3, 3]
    assert finders(retriever, budget=(1, 0, 2), top_k=3) == [1, 3, 3]
    assert finders(retriever, layers=(1, 3), order="interleave", top_k=4) == [1, 3, 1, 3]


def test_a_layer_that_is_not_there_is_named(retriever: PerLayerRetriever) -> None:
    with pytest.raises(PalmetteError, match="layer 7 was not trained"):
        retriever.retrieve(PalmetteQuery("owl", layers=(7,)))
