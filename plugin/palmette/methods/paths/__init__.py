"""The learned index (EHI): a vector space and a tree over it, trained together, so that searches visit few documents.

Every document goes to the leaf that the indexer finds likeliest; a query visits its likeliest leaves and is compared
with the documents there. Three losses train both at once: queries near their documents, queries on the paths of their
documents, unlike documents in different leaves.

Letters: n texts, m width, B branches, H heights, L leaves, l leaves per document, β leaves visited.

``config.py`` options · ``module.py`` space and indexer · ``init.py`` k-means start · ``losses.py``, ``training.py``
training · ``search.py`` leaves to visit, recall by documents visited · ``explain.py`` · ``model.py`` the hooks
"""

from palmette.methods.paths.config import PathsConfig, PathsSearch
from palmette.methods.paths.model import PathsModel

__all__ = ["PathsConfig", "PathsModel", "PathsSearch"]
