"""The learned index's options as attributes of its retriever."""

import pytest
from llama_index.core.schema import TextNode

from llama_index.retrievers.palmette import PalmetteQuery, PathRetriever
from palmette.errors import PalmetteError
from support import tiny


@pytest.fixture(scope="module")
def retriever() -> PathRetriever:
    hidden = ["colour", "animal", "house", "tags"]
    given = [
        TextNode(id_=d.key, text=d.text, metadata=dict(d.metadata), excluded_embed_metadata_keys=hidden)
        for d in tiny.documents()
    ]
    return PathRetriever.from_documents(given, tiny.paths(), similarity_top_k=3, beam=2)


def test_options_are_attributes_and_may_be_asked_for(retriever: PathRetriever) -> None:
    index, query = retriever.index, "where does the red owl live?"
    assert (retriever.beam, retriever.visit) == (2, None)
    assert [n.node.node_id for n in retriever.retrieve(query)] == [
        h.id for h in index.search(query, k=3, beam=2)
    ]
    found = retriever.retrieve(PalmetteQuery(query, top_k=2, beam=1))
    assert [n.node.node_id for n in found] == [h.id for h in index.search(query, k=2, beam=1)]
    wide = PathRetriever(index, visit=0.5, similarity_top_k=4)
    assert [n.node.node_id for n in wide.retrieve(query)] == [
        h.id for h in index.search(query, k=4, visit=0.5)
    ]


def test_wrong_options_are_named(retriever: PathRetriever) -> None:
    with pytest.raises(PalmetteError, match="visit must be a share"):
        retriever.retrieve(PalmetteQuery("owl", visit=2.5))
