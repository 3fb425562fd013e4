"""ReTreever (https://arxiv.org/abs/2502.07971): a learned binary tree, coarse to fine.

A frozen encoder gives a text's states x. Every split node t of a perfect binary tree of depth D routes it softly: left
with probability σ(s_t(x)), right with the rest. The probability of reaching a node is the product along the path (or a
learned function of it), so level h is a distribution over its 2^h nodes, and each level is the sum of the next. Two
texts are as similar as their distributions overlap: Σ min(a, b) = 1 − TVD(a, b). Any level can be searched from one
checkpoint: few columns for speed, all of them for quality. (B batch, d width, D depth, C = 2^D leaves, N split nodes.)
"""

from palmette.methods.tree.config import TreeConfig, TreeSearch
from palmette.methods.tree.inspect import TreeInspection
from palmette.methods.tree.model import TreeModel

__all__ = ["TreeConfig", "TreeInspection", "TreeModel", "TreeSearch"]
