"""Former place of ``search.view``."""  # moved: delete after the merge

from palmette.search.view import ArrayView

__all__ = ["ArrayView"]
