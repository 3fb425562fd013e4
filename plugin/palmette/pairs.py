"""Former names."""  # moved: delete after the merge
# ruff: noqa: F401

from palmette.training.pairs import HardNegatives, TokenRows
from palmette.training.pairs import TrainingPairs as EncodedPairs
