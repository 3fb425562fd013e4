"""LangChain retrievers over trained palmette models.

    from langchain_palmette import TreeRetriever

    retriever = TreeRetriever.from_documents(documents, model="me/ckpt", k=5)
    retriever.invoke("a question")
    retriever.invoke("a question", k=3, filter={"lang": "en"}, level=6, explain=True)

Names are loaded when they are first used: importing this package loads neither torch nor a search engine.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from palmette.errors import MissingExtraError

if TYPE_CHECKING:
    from langchain_palmette.embeddings import PalmetteEmbeddings
    from langchain_palmette.methods import (
        FusionRetriever,
        MultiFieldRetriever,
        PathRetriever,
        PerLayerRetriever,
        TaxonomyRetriever,
        TreeRetriever,
    )
    from langchain_palmette.reader import PalmetteReader
    from langchain_palmette.reranker import PalmetteReranker
    from langchain_palmette.retriever import PalmetteRetriever

__all__ = [
    "FusionRetriever",
    "MultiFieldRetriever",
    "PalmetteEmbeddings",
    "PalmetteReader",
    "PalmetteReranker",
    "PalmetteRetriever",
    "PathRetriever",
    "PerLayerRetriever",
    "TaxonomyRetriever",
    "TreeRetriever",
]

_HOME = {
    "FusionRetriever": "methods",
    "MultiFieldRetriever": "methods",
    "PalmetteEmbeddings": "embeddings",
    "PalmetteReader": "reader",
    "PalmetteReranker": "reranker",
    "PalmetteRetriever": "retriever",
    "PathRetriever": "methods",
    "PerLayerRetriever": "methods",
    "TaxonomyRetriever": "methods",
    "TreeRetriever": "methods",
}

if find_spec("langchain_core") is None:
    raise MissingExtraError("langchain-core", "langchain", __name__)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
