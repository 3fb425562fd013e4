"""Dense retrieval in one vector space: documents and queries are the encoder's vectors, compared by inner product.

Untrained it is the encoder itself. Labelled pairs teach two linear maps, of queries and of documents
(:mod:`palmette.training.space`), before the documents are indexed; there is nothing else to train.
"""

from palmette.methods.space.model import SpaceConfig, SpaceModel, SpaceSearch

__all__ = ["SpaceConfig", "SpaceModel", "SpaceSearch"]
