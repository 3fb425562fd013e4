"""ReTreever (https://arxiv.org/abs/2502.07971): a learned binary tree, coarse to fine.

A frozen encoder E gives a text's embedding x. Every split node t of a perfect binary tree of depth D routes it
softly: left with probability σ(s_t(x)), right with the rest. The probability of reaching a node is the product
along the path, so level h is a distribution over 2^h nodes, and each level is the sum of the next. Two texts are
as similar as their distributions overlap: Σ min(a, b) = 1 − TVD(a, b). Any level can be searched from one
checkpoint: few columns for speed, all of them for quality.

``config.py`` options · ``module.py`` splits and propagation · ``start.py`` where training begins ·
``task.py`` the loss and the depth schedule · ``model.py`` indexing, search, explanation
"""

from palmette.methods.tree.config import TreeConfig, TreeSearch, TreeTraining
from palmette.methods.tree.model import TreeModel

__all__ = ["TreeConfig", "TreeModel", "TreeSearch", "TreeTraining"]
