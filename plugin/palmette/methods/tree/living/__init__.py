"""Trees that change after training: split what became crowded, cut what brings nothing.

``rows.py`` a tree of one shape made into one of another · ``growth.py`` new split nodes · ``pruning.py`` fewer
"""

from palmette.methods.tree.living.growth import grow
from palmette.methods.tree.living.pruning import prune

__all__ = ["grow", "prune"]
