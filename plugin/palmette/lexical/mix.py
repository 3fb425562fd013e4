"""Former place of ``lexical/weight.py``."""

from palmette.lexical.weight import (  # moved: delete after the merge
    DEFAULT,
    Lexical,
    check_lexical,
    options_key,
)
from palmette.lexical.weight import LexicalWeight as Mix

__all__ = ["DEFAULT", "Lexical", "Mix", "check_lexical", "options_key"]
