"""Documents, queries and judgements, from whatever a user has.

``load_data`` reads what trains or measures a model, ``iter_documents`` what an index takes in.
"""

from palmette.data.documents import iter_documents, to_document
from palmette.data.load import DataLike, load_data, with_made_queries
from palmette.data.retrieval import Qrels, RetrievalData, RowPairs, Split
from palmette.data.unlabelled import DEFAULT_KINDS, KINDS

__all__ = [
    "DEFAULT_KINDS",
    "KINDS",
    "DataLike",
    "Qrels",
    "RetrievalData",
    "RowPairs",
    "Split",
    "iter_documents",
    "load_data",
    "to_document",
    "with_made_queries",
]
