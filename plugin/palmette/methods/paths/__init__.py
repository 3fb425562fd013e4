"""The learned index (EHI): a space and a tree over it, trained together, so that a search visits few documents.

Every document goes to the leaf that the indexer finds likeliest; a query visits its likeliest leaves and compares
itself with the documents there. Three losses train both at once: questions near their answers, questions on the
paths of their answers, unlike documents in different leaves.

``module.py`` the indexer and the space · ``losses.py`` the losses · ``start.py`` where the indexer begins ·
``negatives.py`` wrong answers from its own leaves · ``task.py``, ``stages.py`` training · ``curve.py`` recall
against documents visited · ``health.py`` how full the leaves are · ``keywords.py`` what they are about ·
``search.py``, ``explanation.py``, ``model.py`` search
"""

from palmette.methods.paths.config import PathsConfig, PathsSearch
from palmette.methods.paths.model import PathsModel

__all__ = ["PathsConfig", "PathsModel", "PathsSearch"]
