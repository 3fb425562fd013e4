"""One question has one citation, place and score in Python, JSON, MCP, LangChain and LlamaIndex."""

import pytest

from palmette import Document, Index
from palmette.types import PLACES
from support import tiny


def test_a_hit_is_cited_alike_everywhere() -> None:
    langchain = pytest.importorskip("langchain_palmette.documents")
    llama_index = pytest.importorskip("llama_index.retrievers.palmette.nodes")
    mcp = pytest.importorskip("palmette.service.mcp")
    pages = {PLACES: {"kind": "page", "marks": [[1, 11], [2, 12]]}}
    with Index.in_memory(tiny.train_space()) as index:
        index.add([Document("a", "an owl\na fox", {"source": "handbook.pdf"}, payload=pages)])
        (hit,) = index.search("owl", 1)
        facts = hit.to_dict()
        assert facts["citation"] == str(hit.citation) == "handbook.pdf, pages 11\u201312"
        document = langchain.from_hit(hit, "score", False, cite=True)
        node = llama_index.scored(hit, explain=False)
        passage = mcp._passage("i", facts).model_dump()
        for found in (document.metadata, {**node.node.metadata, "score": node.score}, passage):
            assert [found[name] for name in ("citation", "place", "score")] == [
                str(hit.citation),
                hit.citation.to_dict(),
                hit.score,
            ]
        (excerpt,) = index.context("owl").excerpts
        assert str(excerpt.citation).startswith("handbook.pdf, page")
