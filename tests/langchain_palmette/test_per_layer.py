"""The per-layer options as fields of its retriever."""

from pathlib import Path

import pytest
from langchain_core.documents import Document
from pydantic import ValidationError

from langchain_palmette import PerLayerRetriever, TreeRetriever
from palmette.errors import PalmetteError
from support.tiny import documents, layers


@pytest.fixture(scope="module")
def retriever() -> PerLayerRetriever:
    given = [Document(id=d.id, page_content=d.text, metadata=dict(d.metadata)) for d in documents()]
    return PerLayerRetriever.from_documents(given, layers(), k=6, order="layer", engine="faiss")


def finders(retriever: PerLayerRetriever, **options: object) -> list[int]:
    found = retriever.invoke("where does the red owl live?", explain=True, **options)
    return [d.metadata["explanation"]["detail"]["found_by"] for d in found]


def test_options_are_fields_and_may_be_given_per_call(retriever: PerLayerRetriever) -> None:
    assert finders(retriever) == [1, 1, 2, 2, 3, 3]
    assert finders(retriever, budget=(1, 0, 2), k=3) == [1, 3, 3]
    assert finders(retriever, layers=(1, 3), order="interleave", k=4) == [1, 3, 1, 3]
    early = retriever.model_copy(update={"layers": (1, 2)})
    assert set(finders(early)) == {1, 2}
    fused = retriever.invoke("where does the red owl live?", order="fused", k=3)
    assert len(fused) == 3


def test_wrong_options_and_wrong_models_are_refused(retriever: PerLayerRetriever, tmp_path: Path) -> None:
    for wrong in ({"order": "random"}, {"layers": "first"}):
        with pytest.raises(ValidationError, match=next(iter(wrong))):
            PerLayerRetriever(index_path=tmp_path, **wrong)
    with pytest.raises(PalmetteError, match="layers"):
        TreeRetriever.from_index(retriever.index)
