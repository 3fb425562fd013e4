"""palmette for LlamaIndex: retrievers and a vector store whose passages have probabilities, places and reasons.

Names are loaded on first use: importing this package loads neither torch nor a search engine.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from palmette.errors import MissingExtraError

if TYPE_CHECKING:
    from llama_index.retrievers.palmette.embedding import PalmetteEmbedding
    from llama_index.retrievers.palmette.methods import (
        MultiFieldRetriever,
        PathRetriever,
        PerLayerRetriever,
        TaxonomyRetriever,
        TreeRetriever,
    )
    from llama_index.retrievers.palmette.nodes import ExplainedNode
    from llama_index.retrievers.palmette.query import PalmetteQuery, palmette_filter
    from llama_index.retrievers.palmette.reader import PalmetteSynthesizer
    from llama_index.retrievers.palmette.rerank import PalmetteRerank
    from llama_index.retrievers.palmette.retriever import PalmetteRetriever
    from llama_index.retrievers.palmette.vectorstore import PalmetteVectorStore

__all__ = ["MultiFieldRetriever", "PathRetriever", "PerLayerRetriever", "TaxonomyRetriever", "TreeRetriever"]
__all__ += ["ExplainedNode", "PalmetteEmbedding", "PalmetteQuery", "PalmetteRerank", "PalmetteRetriever"]
__all__ += ["PalmetteSynthesizer", "PalmetteVectorStore", "palmette_filter"]

_HOME = {"ExplainedNode": "nodes", "PalmetteSynthesizer": "reader", "palmette_filter": "query"}

# This package is in the namespace llama_index itself; only llama_index.core tells that LlamaIndex is installed.
if find_spec("llama_index.core") is None:
    raise MissingExtraError("llama-index-core", "llama-index", __name__)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = name.removeprefix("Palmette").lower() if name.startswith("Palmette") else "methods"
    return getattr(import_module(f"{__name__}.{_HOME.get(name, module)}"), name)


def __dir__() -> list[str]:
    return __all__
