"""Fits, saves, loads, indexes and asks every method in both frameworks: what must work on every allowed version.

    make smoke

The workflow runs it on the lowest and on the newest versions of all dependencies.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from langchain_core.documents import Document as LangChainDocument
from llama_index.core.schema import TextNode

from langchain_palmette import PalmetteRetriever, PalmetteVectorStore
from llama_index.retrievers.palmette import PalmetteRetriever as LlamaIndexRetriever
from palmette import Index, load_model
from palmette.evaluation import BM25
from support import tiny

SHOWN = ("torch", "transformers", "sentence-transformers", "numpy", "langchain-core", "llama-index-core")


def ask(method: str, folder: Path) -> None:
    """Take one method the whole way; both frameworks and a reopened index must give the same hits."""
    documents = tiny.with_fields() if method == "fields" else tiny.documents()
    tiny.METHODS[method]().save_pretrained(folder / "checkpoint")
    model = load_model(folder / "checkpoint")
    Index.build(documents, model, folder / "index").close()
    with Index.open(folder / "index", model) as index:
        expected = [hit.id for hit in index.search("where does the white hen live?", k=4, explain=True)]
        assert len(expected) == 4, (method, expected)
        ours = PalmetteRetriever.from_index(index, k=4).invoke("where does the white hen live?")
        theirs = LlamaIndexRetriever.from_index(index, similarity_top_k=4).retrieve("where does the white hen live?")
        assert [document.id for document in ours] == expected, method
        assert [found.node.node_id for found in theirs] == expected, method


def ask_without_training() -> None:
    """Texts in, hits out, in both frameworks; an engine of FAISS, and BM25 as a baseline."""
    texts = [document.text for document in tiny.documents()]
    store = PalmetteVectorStore.from_texts(texts)
    retriever = LlamaIndexRetriever.from_documents([TextNode(text=text) for text in texts])
    again = PalmetteRetriever.from_documents([LangChainDocument(text) for text in texts], engine="faiss")
    found = {
        store.similarity_search("white hen", k=1)[0].page_content,
        retriever.retrieve("white hen")[0].node.get_content(),
        again.invoke("white hen")[0].page_content,
    }
    assert len(found) == 1, found
    assert "white hen" in found.pop()
    assert BM25(tiny.documents()).search(["white hen"], 1) == [["white-hen"]]


def main() -> None:
    print(", ".join(f"{name} {version(name)}" for name in SHOWN))
    for method in tiny.METHODS:
        with TemporaryDirectory() as folder:
            ask(method, Path(folder))
        print(f"{method}: the same hits in both frameworks", flush=True)
    ask_without_training()
    print("without training: the same hits in both frameworks")


if __name__ == "__main__":
    main()
