"""Words: analysis, postings and BM25 shares."""

from palmette.lexical.analyser import languages

__all__ = ["languages"]
