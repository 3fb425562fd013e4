"""Former names."""  # moved: delete after the merge
# ruff: noqa: F401

from palmette.training.pairs import DEV_DOCUMENTS, DEV_QUERIES
from palmette.training.pairs import Validation as HeldOut
from palmette.training.pairs import top_documents as best_places
