"""Words: analysis, postings, BM25 shares, and their weight beside a method's score."""

from palmette.lexical.analyser import languages
from palmette.lexical.weight import Lexical, LexicalWeight

Mix = LexicalWeight  # moved: delete after the merge

__all__ = ["Lexical", "LexicalWeight", "languages"]
