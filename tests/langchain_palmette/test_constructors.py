"""Ways to a retriever, and what they share."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document

from langchain_palmette import (
    MultiFieldRetriever,
    PalmetteReranker,
    PalmetteRetriever,
    PerLayerRetriever,
    TreeRetriever,
)
from palmette import Index, TreeModel
from palmette.errors import ConfigError, NotFoundError, StoreError
from support import shop, tiny
from support.local_hub import READ_TOKEN, LocalHub
from support.tiny import train_tree

QUESTION = "The green owl lives in house 10 and sings at night."


def test_from_documents_takes_a_model_or_where_it_lies(
    documents: list[Document], model: TreeModel, checkpoint: Path
) -> None:
    expected = PalmetteRetriever.from_documents(documents, model).invoke(QUESTION)
    assert PalmetteRetriever.from_documents(iter(documents), checkpoint).invoke(QUESTION) == expected
    assert TreeRetriever.from_documents(documents, str(checkpoint), device="cpu").invoke(QUESTION) == expected
    assert TreeRetriever.from_pretrained(checkpoint, documents).invoke(QUESTION) == expected
    growing = TreeRetriever.from_pretrained(checkpoint)
    assert growing.invoke(QUESTION) == []
    growing.add_documents(documents)
    assert growing.invoke(QUESTION) == expected


def test_from_index_takes_a_folder_or_an_index(folder: Path, model: TreeModel) -> None:
    expected = TreeRetriever(index_path=folder).invoke(QUESTION)
    assert TreeRetriever.from_index(str(folder), k=2).invoke(QUESTION) == expected[:2]
    with Index.open(folder) as index:
        opened, other = TreeRetriever.from_index(index), TreeRetriever(index_path=folder)
        assert opened.invoke(QUESTION) == expected
        assert opened.index_path == str(folder)
        assert other.invoke(QUESTION) == expected
    assert other.invoke(QUESTION) == expected  # whoever closes an index closes their own
    assert TreeRetriever(index_path=folder, model=model).index.model is model
    alone = TreeRetriever(index_path=folder, model=TreeModel(model.config, model.encoder, model.module))
    gc.collect()
    assert len(alone.index) == 48  # the retriever holds the model that it was given


def test_what_is_open_is_shared(folder: Path, checkpoint: Path, documents: list[Document], tmp_path: Path) -> None:
    first = TreeRetriever.from_index(folder)
    second = TreeRetriever(index_path=folder, k=2, filter={"house": 1})
    assert second.index.model is first.index.model
    assert TreeRetriever(index_path=folder, k=3).index is first.index
    made = TreeRetriever.from_documents(documents[:2], checkpoint, index_path=tmp_path / "made")
    assert TreeRetriever(index_path=tmp_path / "made").index is made.index
    one, two = (TreeRetriever.from_documents(documents[:2], checkpoint) for _ in range(2))
    assert one.index.model is two.index.model
    reranker = PalmetteReranker(model=checkpoint)
    reranker.compress_documents(documents[:2], QUESTION)
    assert reranker.loaded("model") is one.index.model


def test_what_was_replaced_or_closed_is_opened_anew(
    model: TreeModel, documents: list[Document], tmp_path: Path
) -> None:
    path, ckpt = tmp_path / "index", tmp_path / "ckpt"
    before = TreeRetriever.from_documents(documents[:3], model, index_path=path)
    assert len(before.index) == 3  # its files are open now
    path.rename(tmp_path / "away")
    Index.build((one.page_content for one in documents[:5]), model, path).close()
    after = TreeRetriever(index_path=path)
    assert len(after.index) == 5
    with pytest.raises(StoreError, match="holds another index than the one that was opened: open it again"):
        before.invoke(QUESTION)
    after.index.close()
    assert len(TreeRetriever(index_path=path).index) == 5
    model.save_pretrained(ckpt)
    first = TreeRetriever.from_documents(documents[:3], ckpt)
    other = train_tree(seed=1, steps=1)
    other.save_pretrained(ckpt)
    second = TreeRetriever.from_documents(documents[:3], ckpt)
    assert first.index.model.fingerprint == model.fingerprint
    assert second.index.model.fingerprint == other.fingerprint


def test_a_token_is_not_kept(hub: LocalHub, model: TreeModel, documents: list[Document], tmp_path: Path) -> None:
    model.push_to_hub("me/tree", private=True)
    how: dict[str, Any] = {"cache_dir": tmp_path / "cache", "k": 1}
    with pytest.raises(NotFoundError):
        TreeRetriever.from_pretrained("me/tree", documents, **how, token=False)
    made = TreeRetriever.from_pretrained("me/tree", documents, **how, token=READ_TOKEN, index_path=tmp_path / "index")
    hub.fail()
    assert made.index.model.origin == "me/tree"
    assert READ_TOKEN not in repr(made) + made.model_dump_json()
    offline = TreeRetriever.from_pretrained("me/tree", documents, **how, local_files_only=True)
    assert offline.invoke(QUESTION) == made.invoke(QUESTION)


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
