"""Former place of ``lexical/bm25.py``."""

from palmette.lexical.bm25 import WordCollection as Given  # moved: delete after the merge
from palmette.lexical.bm25 import word_shares as shares_among

__all__ = ["Given", "shares_among"]
