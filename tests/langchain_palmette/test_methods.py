"""What LangChain's fields add to the options of each method (tests/adapters has what both frameworks do)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document
from pydantic import ValidationError

from langchain_palmette import (
    MultiFieldRetriever,
    PalmetteRetriever,
    PathRetriever,
    PerLayerRetriever,
    TaxonomyRetriever,
    TreeRetriever,
)
from palmette import Index
from palmette.errors import PalmetteError
from support import shop, tiny

QUESTION = "where does the red owl live?"


@pytest.mark.parametrize(
    ("kind", "invalid"),
    [
        (TreeRetriever, [{"level": "best"}, {"rerank": "llm"}, {"shortlist": 0}, {"lexical": 1.5}]),
        (MultiFieldRetriever, [{"by": "guess"}, {"shortlist": 0}, {"blend": 3}]),
        (PerLayerRetriever, [{"order": "random"}, {"layers": "first"}]),
        (PathRetriever, [{"beam": 0}, {"beam": True}, {"tolerance": 2}, {"visit": "all"}, {"visit": True}]),
        (TaxonomyRetriever, [{"cut": 2}, {"order": "random"}]),
    ],
)
def test_fields_take_no_wrong_options(kind: Any, invalid: list[dict[str, Any]], tmp_path: Path) -> None:
    for wrong in invalid:
        with pytest.raises(ValidationError, match=next(iter(wrong))):
            kind(index_path=tmp_path, **wrong)


def test_a_document_of_fields_alone_has_a_page() -> None:
    products = [
        {"id": "1", "fields": {"brand": "Ovine", "title": "golden owl socks"}},
        {"id": "2", "text": "a cat"},
    ]
    found = MultiFieldRetriever.from_index(Index.build(products, shop.model())).invoke("golden owl", k=2)
    assert {d.id: d.page_content for d in found} == {"1": "Ovine\ngolden owl socks", "2": "a cat"}


def test_what_is_not_set_leaves_other_options(documents: list[Document]) -> None:
    index = PerLayerRetriever.from_documents(documents, tiny.layers()).index
    both = PerLayerRetriever.from_index(index, search_options={"order": "layer"}, k=3)
    assert both.order is None
    layered = PerLayerRetriever.from_index(index, order="layer", k=3)
    assert both.invoke(QUESTION) == layered.invoke(QUESTION)
    none = dict.fromkeys(["order", "k", "filter", "lexical"])
    assert layered.invoke(QUESTION, **none) == PerLayerRetriever.from_index(index).invoke(QUESTION, k=3)


def test_options_that_no_search_could_use_are_refused_at_once(
    documents: list[Document], tmp_path: Path
) -> None:
    with pytest.raises(PalmetteError, match="layer 9 is asked for|layer 9 was not trained"):
        PerLayerRetriever.from_documents(documents, tiny.layers(), layers=(9,), index_path=tmp_path / "index")
    assert not (tmp_path / "index").exists(), "nothing was indexed for it"
    kept = PalmetteRetriever.from_documents(
        documents, tiny.layers(), index_path=tmp_path / "index", engine="faiss"
    )
    with pytest.raises(PalmetteError, match="Did you mean 'order'"):
        PerLayerRetriever.from_index(kept.index, search_options={"ordre": "layer"})
    with pytest.raises(PalmetteError, match="needs a share for each"):
        PerLayerRetriever.from_index(tmp_path / "index", order="layer", budget=(1, 2, 3, 4, 5))
