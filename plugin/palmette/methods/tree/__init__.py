"""ReTreever (https://arxiv.org/abs/2502.07971): a learned binary tree, coarse to fine.

A frozen encoder E gives a text's states x. Every split node t of a binary tree of depth D routes it softly: left
with probability σ(s_t(x)), right with the rest. The probability of reaching a node is the product along the path
(or a learned function of it), so level h is a distribution over its nodes, and each level is the sum of the next.
Two texts are as similar as their distributions overlap: Σ min(a, b) = 1 − TVD(a, b). Any level can be searched
from one checkpoint: few columns for speed, all of them for quality.

``config.py`` options · ``shape.py`` which nodes there are · ``splits.py`` s_t(x) · ``propagation.py`` from scores to
probabilities · ``module.py`` the two together · ``start.py`` where training begins · ``task.py`` the loss and the
schedules · ``trust.py`` how far to go without labels · ``living/`` growing and pruning afterwards · ``search.py``
reranking and leaf search ·
``explanation.py`` the shared path · ``topics.py`` what nodes speak of, ``branches.py`` over which columns ·
``inspection/`` the tree as data and as a page · ``model.py`` all of it behind the hooks of a method
"""

from palmette.methods.tree.config import TreeConfig, TreeSearch
from palmette.methods.tree.inspection import TreeInspection
from palmette.methods.tree.model import TreeModel

__all__ = ["TreeConfig", "TreeInspection", "TreeModel", "TreeSearch"]
