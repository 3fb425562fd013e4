"""Documents in, explained hits out.

index.py      Index: making, opening, and what a user can do with one
writing.py    one change, whole or not at all
searching.py  one search, and the explanations of its hits
results.py    counts, changes, rankings
checks.py     what users hand in, checked before anything is done with it
"""

from palmette.index.index import MODEL, Engine, Index
from palmette.index.results import Changes, IndexStats, Ranking

__all__ = ["MODEL", "Changes", "Engine", "Index", "IndexStats", "Ranking"]
