"""Former place of parts of ``palmette.arrays``."""  # moved: delete after the merge

from palmette.arrays import ONE, as_floats, to_fixed
from palmette.arrays import as_fixed as as_parts

__all__ = ["ONE", "as_floats", "as_parts", "to_fixed"]
