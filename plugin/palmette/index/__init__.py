"""Documents in, explained hits out."""

from palmette.index.folder import MODEL, Engine, IndexStats
from palmette.index.index import Index
from palmette.index.results import Ranking
from palmette.index.write import Changes

__all__ = ["MODEL", "Changes", "Engine", "Index", "IndexStats", "Ranking"]
