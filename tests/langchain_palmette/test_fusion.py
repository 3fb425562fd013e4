"""Words beside a method, and several models as one retriever."""

import pytest
from langchain_core.documents import Document
from pydantic import ValidationError

from langchain_palmette import FusionRetriever, PalmetteRetriever, TreeRetriever
from palmette.errors import PalmetteError
from support import tiny


def test_lexical_is_a_field_and_may_be_given_per_call(documents: list[Document]) -> None:
    documents.append(Document(id="part", page_content="Spare part dv7-1211ea."))
    retriever = TreeRetriever.from_documents(documents, tiny.tree(), lexical=0.95, k=1)
    assert retriever.invoke("dv7-1211ea")[0].id == "part"
    only = retriever.invoke("dv7-1211ea", lexical=1, k=9, score_threshold=1e-6, explain=True)
    assert [found.id for found in only] == ["part"]
    assert "dv7" in only[0].metadata["explanation"]["detail"]["lexical"]["words"]
    pure = TreeRetriever.from_index(retriever.index, k=5).invoke("red owl", lexical=0)
    assert [d.id for d in pure] == [h.id for h in retriever.index.search("red owl", 5, lexical=0)]
    assert retriever.model_copy().lexical == 0.95
    with pytest.raises(ValidationError, match="lexical"):
        TreeRetriever(index_path="x", lexical=1.5)
    with pytest.raises(PalmetteError, match="lexical"):
        retriever.invoke("owl", lexical=7)


def test_fusion_is_made_of_models_and_opened_again(documents: list[Document], tmp_path) -> None:
    models = [tiny.tree(), tiny.taxonomy()]
    retriever = FusionRetriever.from_documents(documents, models, index_path=tmp_path / "i", k=3)
    found = retriever.invoke("where does the red owl live?", explain=True)
    assert set(found[0].metadata["explanation"]["detail"]["members"]) == {"0:tree", "1:taxonomy"}
    again = PalmetteRetriever(index_path=tmp_path / "i", k=3)
    assert [d.id for d in again.invoke("where does the red owl live?")] == [d.id for d in found]
    with pytest.raises(PalmetteError, match="FusionRetriever"):
        TreeRetriever.from_index(tmp_path / "i")


def test_fusion_of_ranks(documents: list[Document]) -> None:
    models = [tiny.tree(), tiny.taxonomy()]
    retriever = FusionRetriever.from_documents(documents, models, weights="rrf", k=3)
    best = retriever.invoke("where does the red owl live?", explain=True)[0]
    parts = best.metadata["explanation"]["parts"]
    assert {part["name"] for part in parts} <= {"0:tree rank", "1:taxonomy rank"}
    assert sum(part["value"] for part in parts) == pytest.approx(best.metadata["score"])
    weighted = FusionRetriever.from_documents(documents, models, weights=[3, 1])
    assert weighted.index.model.config.weights == (0.75, 0.25)
    with pytest.raises(PalmetteError, match="two models"):
        FusionRetriever.from_documents(documents, tiny.tree(), weights="rrf")
