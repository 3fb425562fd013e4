"""Former place of parts of ``palmette.arrays``."""  # moved: delete after the merge

from palmette.arrays import best, best_of_each, highest

__all__ = ["best", "best_of_each", "highest"]
