"""Words: what they are, in which documents they stand, and how they are mixed into a method's scores.

tokens.py       text → words
postings.py     which words stand in which documents; kernels.py, the loops over them
bm25.py         how much of a query a document answers
skipping.py     the best documents without all postings; given.py, of a few documents without an index
mix.py          that beside a method's score; calibration.py, how much it counts; explanation.py, in words
"""

from palmette.lexical.mix import Lexical, Mix
from palmette.lexical.tokens import languages

__all__ = ["Lexical", "Mix", "languages"]
