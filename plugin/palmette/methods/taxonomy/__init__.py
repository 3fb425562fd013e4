"""Dual encoders for hierarchical retrieval: a query finds its exact match and everything above it.

Documents form a hierarchy, seen or hidden; what answers a query is one node and all of its ancestors. Queries
and documents have towers of their own, since "sandals" answers "kids' sandals" and not the other way round, and
are compared by inner product. The loss is a softmax over the batch, with the correction that makes it work
(see ``losses.py``); the paper's own remedy for far ancestors, pretraining and then finetuning on far pairs, is
``recipe="pretrain-finetune"``.

``hierarchy.py`` nodes and edges · ``matches.py`` what matches what, and how far · ``data.py`` from users' data to
both · ``module.py`` the towers · ``losses.py`` the softmax · ``sampling.py`` draws · ``task.py``, ``stages.py``
training · ``construction.py`` embeddings without training · ``calibration.py`` when to stop · ``searching.py``,
``explanation.py``, ``model.py`` search · ``metrics.py`` recall by distance · ``hyperlex.py`` a public test
"""

from palmette.methods.taxonomy.config import TaxonomyConfig, TaxonomySearch, TaxonomyTraining
from palmette.methods.taxonomy.construction import dimension_needed
from palmette.methods.taxonomy.hierarchy import Hierarchy
from palmette.methods.taxonomy.model import TaxonomyModel

__all__ = [
    "Hierarchy",
    "TaxonomyConfig",
    "TaxonomyModel",
    "TaxonomySearch",
    "TaxonomyTraining",
    "dimension_needed",
]
