"""Looking at a tree: what it has made of an index, as data and as a page.

``inspection.py`` the data · ``survey.py`` how it is gathered · ``congruence.py`` near in the tree, near in meaning? ·
``page.py`` one HTML file, from ``page.html``, ``page.css`` and ``page.js`` · ``serving.py`` the page with any query
"""

from palmette.methods.tree.inspection.congruence import Congruence
from palmette.methods.tree.inspection.inspection import (
    Balance,
    Found,
    Listed,
    Route,
    TreeInspection,
    TreeNode,
)

__all__ = ["Balance", "Congruence", "Found", "Listed", "Route", "TreeInspection", "TreeNode"]
