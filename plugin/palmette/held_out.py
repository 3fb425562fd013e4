"""Former names."""  # moved: delete after the merge

from palmette.training.pairs import DEV_DOCUMENTS, DEV_QUERIES
from palmette.training.pairs import Validation as HeldOut
from palmette.training.pairs import top_documents as best_places

__all__ = ["DEV_DOCUMENTS", "DEV_QUERIES", "HeldOut", "best_places"]
