"""One query: its options, scores, explanation and errors; what fields add to the options of each method."""

from __future__ import annotations

import pytest
from langchain_core.documents import Document

from langchain_palmette import MultiFieldRetriever, PerLayerRetriever, TreeRetriever
from palmette import Index
from palmette.errors import ConfigError
from support import shop, tiny

QUESTION = "The green owl lives in house 10 and sings at night."


def test_the_score_goes_where_it_is_wanted_and_replaces_nothing_in_the_index(empty: TreeRetriever) -> None:
    given = {"score": "AAA", "explanation": 1}
    empty.upsert([Document(id="a", page_content="a green owl", metadata=given)])
    [(document, score)] = empty.similarity_search_with_score("owl", 2, filter={"explanation": 1})
    assert type(score) is float
    assert empty.get(["a"])[0].metadata == given
    assert document.metadata == given
    [cited] = empty.invoke("owl")
    assert (cited.page_content, cited.metadata.pop("place")["file"]) == (document.page_content, "a")
    assert cited.metadata == given | {"citation": "a"}
    for key in ("score", "retrieval_score"):
        [found] = TreeRetriever.from_index(empty.index, score_key=key).invoke("owl")
        assert found.metadata == cited.metadata | {key: score, "place": found.metadata["place"]}
    assert empty.invoke("owl", explain=True)[0].metadata["explanation"] != 1
    with pytest.raises(ConfigError, match="no option 'threshold'"):
        empty.similarity_search_with_score(QUESTION, threshold=0.5)


def test_a_document_of_fields_alone_has_a_page() -> None:
    fields = {"brand": "Ovine", "title": "golden owl socks"}
    products = [{"id": "1", "fields": fields}, {"id": "2", "text": "a cat"}]
    found = MultiFieldRetriever.from_index(Index.build(products, shop.quick())).invoke("golden owl", k=2)
    assert {d.id: d.page_content for d in found} == {"1": "Ovine\ngolden owl socks", "2": "a cat"}


def test_what_is_not_set_leaves_other_options(documents: list[Document]) -> None:
    index = PerLayerRetriever.from_documents(documents, tiny.layers()).index
    both = PerLayerRetriever.from_index(index, search_options={"order": "layer"}, k=3)
    assert both.order is None
    layered = PerLayerRetriever.from_index(index, order="layer", k=3)
    assert both.invoke(QUESTION) == layered.invoke(QUESTION)
    none = dict.fromkeys(["order", "k", "filter", "lexical"])
    assert layered.invoke(QUESTION, **none) == PerLayerRetriever.from_index(index).invoke(QUESTION, k=3)
