"""Dual encoders for hierarchical retrieval: a query finds its exact match and all of that node's ancestors.

Documents form a hierarchy, known or hidden; one node and its ancestors, S(q), answer a query. Queries and documents
have towers of their own, since "sandals" answers "kids' sandals" and not the other way round, and are compared by
inner product. The loss is a softmax over the batch, corrected for how often a document is drawn; the paper's own
remedy for far ancestors, pretraining and then finetuning on far pairs, is ``recipe="pretrain-finetune"``.

Letters: B batch · U distinct documents of a batch · H hard negatives per query · Q queries · N nodes · P matches ·
w width of the encoder's embedding · d width of ours · T multiplier.
"""

from palmette.methods.taxonomy.config import TaxonomyConfig, TaxonomySearch
from palmette.methods.taxonomy.hierarchy import Hierarchy
from palmette.methods.taxonomy.model import TaxonomyModel

__all__ = ["Hierarchy", "TaxonomyConfig", "TaxonomyModel", "TaxonomySearch"]
