"""The options of documents with fields as fields of their retriever."""

from pathlib import Path

import pytest
from langchain_core.documents import Document
from pydantic import ValidationError

from langchain_palmette import MultiFieldRetriever, TreeRetriever
from palmette import Index
from palmette.errors import PalmetteError
from support.shop import model, shop


@pytest.fixture(scope="module")
def retriever() -> MultiFieldRetriever:
    products = [
        Document(id=d.id, page_content=d.text, metadata={**d.metadata, "title": d.fields.get("title", "")})
        for d in shop()
    ]
    return MultiFieldRetriever.from_documents(products, model(), k=3, lexical=0)


def test_fields_come_from_metadata(retriever: MultiFieldRetriever) -> None:
    """The same products, their titles in metadata: the same vectors, and so the same results."""
    found = retriever.invoke("golden owl 22", explain=True)
    assert len(found) == 3
    for document in found:
        detail = document.metadata["explanation"]["detail"]
        assert set(detail["similarities"]) == {"brand", "title", "text"}
        assert detail["field"] in detail["similarities"]
        assert detail["text"]


def test_options_are_fields_and_may_be_given_per_call(retriever: MultiFieldRetriever) -> None:
    brands = {d.metadata["brand"] for d in retriever.invoke("golden", k=9, fields=["brand"], by="best")}
    by_call = retriever.invoke("golden owl 22", by="aggregate", k=5)
    copy = retriever.model_copy(update={"by": "aggregate", "k": 5})
    assert [d.id for d in copy.invoke("golden owl 22")] == [d.id for d in by_call]
    weighted = retriever.invoke("golden owl 22", weights={"title": 3.0, "text": 0.5}, blend=0.0, shortlist=50)
    assert len(weighted) == 3
    assert len(brands) < 3
    cheap = retriever.invoke("golden owl 22", k=60, filter={"price": {"$lt": 10}})
    assert {d.metadata["price"] for d in cheap} == set(range(10))


def test_a_document_of_fields_alone_has_a_page() -> None:
    products = [
        {"id": "1", "fields": {"brand": "Ovine", "title": "golden owl socks"}},
        {"id": "2", "text": "a cat"},
    ]
    found = MultiFieldRetriever.from_index(Index.build(products, model())).invoke("golden owl", k=2)
    assert {d.id: d.page_content for d in found} == {"1": "Ovine\ngolden owl socks", "2": "a cat"}


def test_none_per_call_is_the_method_s_default(retriever: MultiFieldRetriever) -> None:
    expected = [d.id for d in retriever.invoke("golden owl 22")]
    none = dict.fromkeys(["by", "shortlist", "blend", "fields", "weights", "k", "filter", "lexical"])
    assert [d.id for d in retriever.invoke("golden owl 22", **none)] == expected
    brand = retriever.model_copy(update={"fields": ["brand"], "weights": {"brand": 2.0}})
    assert [d.id for d in brand.invoke("golden owl 22")] != expected
    assert [d.id for d in brand.invoke("golden owl 22", fields=None, weights=None)] == expected


def test_wrong_options_and_wrong_models_are_refused(retriever: MultiFieldRetriever, tmp_path: Path) -> None:
    for wrong in ({"by": "guess"}, {"shortlist": 0}, {"blend": 3}):
        with pytest.raises(ValidationError, match=next(iter(wrong))):
            MultiFieldRetriever(index_path=tmp_path, **wrong)
    with pytest.raises(PalmetteError, match="no field 'colour'"):
        retriever.invoke("owl", fields=["colour"])
    with pytest.raises(PalmetteError, match="fields"):
        TreeRetriever.from_index(retriever.index)


def test_a_mapping_of_fields_belongs_to_training(retriever: MultiFieldRetriever) -> None:
    with pytest.raises(ValidationError, match=r"FieldsModel\.fit.*fields=\['brand'\]"):
        MultiFieldRetriever.from_index(retriever.index, fields={"brand": "metadata.brand"})
