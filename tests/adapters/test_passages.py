"""Documents of any length and paths, in both frameworks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from palmette import Document, FakeEncoder, SpaceModel
from support.frameworks import SECTIONS

MODEL = SpaceModel.untrained(FakeEncoder(16))
PARTS = [f"## Part {word}\n\nThe {word} sings at night, and nobody minds." for word in ("owl", "hen", "fox")]
LONG = "\n\n".join(PARTS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "guide.md").write_text(LONG)
    (tmp_path / "notes" / "b.txt").write_text("A short text.")
    return tmp_path / "notes"


def test_langchain_cuts_and_reads(folder: Path) -> None:
    from langchain_core.documents import Document

    from langchain_palmette import PalmetteRetriever, PalmetteVectorStore

    given = Document(id="a", page_content=LONG, metadata={"n": 1})
    made = PalmetteRetriever.from_documents([given], MODEL, passages={"tokens": 20}, k=9)
    found = made.invoke("which fox sings?")
    assert len(found) == 3
    assert {(one.id, one.metadata["n"]) for one in found} == {("a", 1)}
    assert sorted(one.page_content for one in found) == sorted(PARTS)
    assert made.get(["a"]) == [given]
    store = PalmetteVectorStore.from_documents([given], MODEL, passages={"tokens": 20})
    assert len(store.max_marginal_relevance_search("fox", k=3)) == 3
    read = PalmetteRetriever.from_documents(str(folder), MODEL)
    assert sorted(document.key for document in read.index.documents()) == ["b.txt", "guide.md"]
    read.add_documents(folder / "b.txt")
    assert len(read.index) == 2


def test_llama_index_cuts_and_reads(folder: Path) -> None:
    from llama_index.core.schema import Document

    from llama_index.retrievers.palmette import PalmetteRetriever

    given = Document(id_="a", text=LONG, metadata={"n": 1}, excluded_embed_metadata_keys=["n"])
    made = PalmetteRetriever.from_documents([given], MODEL, passages={"tokens": 20}, similarity_top_k=9)
    found = made.retrieve("which fox sings?")
    assert sorted(one.node_id for one in found) == ["a#1", "a#2", "a#3"]
    assert all(one.node.get_content() in LONG and one.metadata["n"] == 1 for one in found)
    assert {one.node.ref_doc_id for one in found} == {"a"}
    assert made.get_nodes(["a"])[0].get_content() == LONG
    assert made.explain("which fox sings?", found[0].node_id).score == pytest.approx(found[0].score)
    read = PalmetteRetriever.from_documents(folder, MODEL)
    assert sorted(document.key for document in read.index.documents()) == ["b.txt", "guide.md"]
    read.insert_nodes(str(folder / "b.txt"))
    assert len(read.index) == 2


def test_passages_are_cited_and_grouped(framework: Any) -> None:
    given = [Document(id, f"# Owls\n\n{SECTIONS}") for id in ("a", "b")]
    retriever = framework.build("PalmetteRetriever", given, MODEL, passages={"tokens": 25}, k=3)
    ask = lambda **how: framework.ask(retriever, "owls of house 3", **how)  # noqa: E731
    [found, *_] = ask()
    assert found.metadata["citation"].startswith(f"{found.id.partition('#')[0]} › ")
    assert sorted(one.id.partition("#")[0] for one in ask(group_by="document")) == ["a", "b"]
    assert [len({one.text for one in ask(distinct=distinct)}) for distinct in (False, True)] == [2, 3]
    if framework.package.__name__ == "langchain_palmette":
        assert len(ask(distinct=True)[0].metadata["copies"]) == 1
