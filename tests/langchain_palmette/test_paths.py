"""The learned index's options as fields of its retriever."""

from pathlib import Path

import pytest
from langchain_core.documents import Document
from pydantic import ValidationError

from langchain_palmette import PathRetriever, TreeRetriever
from palmette.errors import PalmetteError
from support import tiny


@pytest.fixture(scope="module")
def retriever() -> PathRetriever:
    given = [Document(id=d.id, page_content=d.text, metadata=dict(d.metadata)) for d in tiny.documents()]
    return PathRetriever.from_documents(given, tiny.paths(), k=3, beam=2)


def test_options_are_fields_and_may_be_given_per_call(retriever: PathRetriever) -> None:
    index, query = retriever.index, "where does the red owl live?"
    assert [d.id for d in retriever.invoke(query)] == [hit.id for hit in index.search(query, k=3, beam=2)]
    everything = retriever.invoke(query, visit=1.0, beam=None, k=48)
    assert len(everything) == 48
    shares = [retriever.model_copy(update={"beam": None, "visit": visit}) for visit in (0.2, 9, "auto")]
    for changed in shares:
        expected = [hit.id for hit in index.search(query, k=3, visit=changed.visit)]
        assert [d.id for d in changed.invoke(query)] == expected
    explained = retriever.invoke(query, explain=True)[0]
    assert "leaf" in str(explained.metadata)


def test_wrong_options_and_wrong_models_are_refused(retriever: PathRetriever, tmp_path: Path) -> None:
    for wrong in ({"beam": 0}, {"beam": True}, {"tolerance": 2}, {"visit": "all"}, {"visit": True}):
        with pytest.raises(ValidationError, match=next(iter(wrong))):
            PathRetriever(index_path=tmp_path, **wrong)
    with pytest.raises(PalmetteError, match="visit must be a share"):
        retriever.invoke("owl", visit=1.5)
    with pytest.raises(PalmetteError, match="paths"):
        TreeRetriever.from_index(retriever.index)
