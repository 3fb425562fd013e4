"""Former place of ``search.kernels.compiled``."""  # moved: delete after the merge

from palmette.search.kernels import compiled

__all__ = ["compiled"]
