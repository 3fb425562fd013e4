"""Former place of ``lexical/weight.py``."""

from palmette.lexical.weight import best_weights, scale_of  # moved: delete after the merge
from palmette.lexical.weight import learn_weight as calibrated

__all__ = ["best_weights", "calibrated", "scale_of"]
