"""Words beside a method, and several models as one retriever."""

import pytest
from llama_index.core.schema import QueryBundle, TextNode

from llama_index.retrievers.palmette import FusionRetriever, PalmetteQuery, TreeRetriever
from palmette.errors import PalmetteError
from support import tiny


def nodes() -> list[TextNode]:
    made = [TextNode(id_=d.id, text=d.text) for d in tiny.documents()]
    return [*made, TextNode(id_="part", text="Spare part dv7-1211ea.")]


def test_lexical_is_an_option_of_retrievers_and_queries() -> None:
    retriever = TreeRetriever.from_documents(nodes(), tiny.tree(), lexical=0.95, similarity_top_k=1)
    assert retriever.retrieve("dv7-1211ea")[0].node_id == "part"
    only = retriever.retrieve(PalmetteQuery("dv7-1211ea", lexical=1, top_k=9, score_threshold=1e-6))
    assert [found.node_id for found in only] == ["part"]
    assert retriever.settings()["lexical"] == 0.95
    assert "dv7" in retriever.explain("dv7-1211ea", "part").detail["lexical"]["words"]
    vector = tiny.tree().encoder.encode_queries(["red owl"])[0].tolist()
    [pure] = retriever.retrieve(QueryBundle("red owl", embedding=vector))
    assert pure.score == pytest.approx(retriever.index.search("red owl", 1, lexical=0)[0].score, abs=1e-5)
    with pytest.raises(PalmetteError, match="lexical"):
        retriever.retrieve(PalmetteQuery("owl", lexical=7))


def test_fusion_is_made_of_models() -> None:
    retriever = FusionRetriever.from_documents(nodes(), [tiny.tree(), tiny.taxonomy()], explain=True)
    [best, _] = retriever.retrieve("where does the red owl live?")
    assert set(best.explanation.detail["members"]) == {"0:tree", "1:taxonomy"}
    with pytest.raises(PalmetteError, match="fusion"):
        FusionRetriever.from_documents(nodes(), tiny.tree())


def test_fusion_of_ranks() -> None:
    models = [tiny.tree(), tiny.taxonomy()]
    retriever = FusionRetriever.from_documents(nodes(), models, weights="rrf", explain=True)
    [best, _] = retriever.retrieve("where does the red owl live?")
    assert {part.name for part in best.explanation.parts} <= {"0:tree rank", "1:taxonomy rank"}
    assert sum(part.value for part in best.explanation.parts) == pytest.approx(best.score)
    weighted = FusionRetriever.from_documents(nodes(), models, weights=[3, 1])
    assert weighted.index.model.config.weights == (0.75, 0.25)
