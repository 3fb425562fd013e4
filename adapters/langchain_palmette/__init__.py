"""palmette for LangChain: retrievers and a vector store whose passages have probabilities, places and reasons.

Names are loaded on first use: importing this package loads neither torch nor a search engine.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from palmette.errors import MissingExtraError

if TYPE_CHECKING:
    from langchain_palmette.embeddings import PalmetteEmbeddings
    from langchain_palmette.methods import (
        MultiFieldRetriever,
        PathRetriever,
        PerLayerRetriever,
        TaxonomyRetriever,
        TreeRetriever,
    )
    from langchain_palmette.reader import PalmetteReader
    from langchain_palmette.reranker import PalmetteReranker
    from langchain_palmette.retriever import PalmetteRetriever
    from langchain_palmette.translator import PalmetteTranslator
    from langchain_palmette.vectorstore import PalmetteVectorStore

__all__ = ["MultiFieldRetriever", "PathRetriever", "PerLayerRetriever", "TaxonomyRetriever", "TreeRetriever"]
__all__ += ["PalmetteEmbeddings", "PalmetteReader", "PalmetteReranker", "PalmetteRetriever"]
__all__ += ["PalmetteTranslator", "PalmetteVectorStore"]

if find_spec("langchain_core") is None:
    raise MissingExtraError("langchain-core", "langchain", __name__)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = name.removeprefix("Palmette").lower() if name.startswith("Palmette") else "methods"
    return getattr(import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return __all__
