"""Words: analysis, postings, BM25 shares, and their weight beside a method's score."""

from palmette.lexical.analyser import languages
from palmette.lexical.weight import Lexical, LexicalWeight

__all__ = ["Lexical", "LexicalWeight", "languages"]
