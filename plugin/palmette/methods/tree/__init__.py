"""ReTreever (https://arxiv.org/abs/2502.07971): a binary tree over texts, coarse to fine.

By default its leaves are clusters of the documents, its nodes topics, and searches rank by the space. Trained by pairs,
as in the paper, it ranks by itself:

A frozen encoder gives a text's states x. Every split node t of a perfect binary tree of depth D routes it softly: left
with probability σ(s_t(x)), right with the rest. The probability of reaching a node is the product along the path (or a
learned function of it), so level h is a distribution over its 2^h nodes, and each level is the sum of the next. Two
texts are as similar as their distributions overlap: Σ min(a, b) = 1 − TVD(a, b). Any level can be searched from one
checkpoint. (B batch, d width, D depth, C = 2^D leaves, N split nodes.)
"""

from palmette.methods.tree.config import TreeConfig, TreeSearch
from palmette.methods.tree.explain import outline

__all__ = ["TreeConfig", "TreeSearch", "outline"]
