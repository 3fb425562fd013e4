"""Former place of ``arrays.quantise`` and ``search.flat.PART``."""  # moved: delete after the merge

from palmette.arrays import quantise as quantised
from palmette.search.flat import PART

__all__ = ["PART", "quantised"]
