"""Former place of ``lexical/weight.py``."""

from palmette.lexical.weight import explain_words as mixed  # moved: delete after the merge

__all__ = ["mixed"]
