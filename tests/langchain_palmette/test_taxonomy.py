"""The taxonomy's options as fields of its retriever."""

from pathlib import Path

import pytest
from langchain_core.documents import Document
from pydantic import ValidationError

from langchain_palmette import TaxonomyRetriever, TreeRetriever
from palmette import FakeEncoder, TaxonomyModel
from palmette.errors import PalmetteError
from support.taxonomies import chain, zoo


@pytest.fixture(scope="module")
def retriever() -> TaxonomyRetriever:
    options = {"dimension": 16, "steps": 200, "learning_rate": 0.01, "evaluate_every": 200}
    model = TaxonomyModel.fit(zoo(), encoder=FakeEncoder(48), progress=False, **options)
    nodes = [Document(id=d.id, page_content=d.text, metadata=dict(d.metadata)) for d in zoo()]
    return TaxonomyRetriever.from_documents(nodes, model, k=3, order="specific")


def test_options_are_fields_and_may_be_given_per_call(retriever: TaxonomyRetriever) -> None:
    assert [d.id for d in retriever.invoke("owl 3")] == chain("owl 3")
    assert [d.id for d in retriever.invoke("owl 3", within="owl", k=2)] == ["owl 3", "owl"]
    closed = retriever.model_copy(update={"closed": True, "cut": 0.5, "order": None})
    assert set(chain("owl 3")) == {d.id for d in closed.invoke("owl 3")}


def test_wrong_options_and_wrong_models_are_refused(retriever: TaxonomyRetriever, tmp_path: Path) -> None:
    for wrong in ({"cut": 2}, {"order": "random"}):
        with pytest.raises(ValidationError, match=next(iter(wrong))):
            TaxonomyRetriever(index_path=tmp_path, **wrong)
    with pytest.raises(PalmetteError, match="taxonomy"):
        TreeRetriever.from_index(retriever.index)
