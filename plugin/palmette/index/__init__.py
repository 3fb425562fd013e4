"""Documents in, explained hits out.

index.py      Index: making, opening, and what a user can do with one
writing.py    one change, whole or not at all
searching.py  one search, and the explanations of its hits
hybrid.py     words and structure in one search
opening.py    folders made, opened, copied
results.py    counts, changes, rankings
checks.py     what users hand in, checked before anything is done with it
"""

from palmette.index.index import Index
from palmette.index.opening import MODEL, Engine
from palmette.index.results import Changes, IndexStats, Ranking

__all__ = ["MODEL", "Changes", "Engine", "Index", "IndexStats", "Ranking"]
