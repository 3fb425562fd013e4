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


def test_options_that_no_search_could_use_are_refused_at_once(tmp_path: Path) -> None:
    given = [Document(id=d.id, page_content=d.text) for d in documents()]
    with pytest.raises(PalmetteError, match="layer 9 is asked for|layer 9 was not trained"):
        PerLayerRetriever.from_documents(given, layers(), layers=(9,), index_path=tmp_path / "index")
    assert not (tmp_path / "index").exists(), "nothing was indexed for it"
    kept = PerLayerRetriever.from_documents(given, layers(), index_path=tmp_path / "index")
    with pytest.raises(PalmetteError, match="Did you mean 'order'"):
        PerLayerRetriever.from_index(kept.index, search_options={"ordre": "layer"})
    with pytest.raises(PalmetteError, match="needs a share for each"):
        PerLayerRetriever.from_index(tmp_path / "index", order="layer", budget=(1, 2, 3, 4, 5))
    both = PerLayerRetriever.from_index(kept.index, search_options={"order": "layer"}, k=3)
    assert both.order is None
    assert finders(both) == [1, 2, 3], "a field that is not set leaves search_options as they are"
