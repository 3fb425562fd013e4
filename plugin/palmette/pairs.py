"""Former names."""  # moved: delete after the merge

from palmette.training.pairs import HardNegatives, TokenRows
from palmette.training.pairs import TrainingPairs as EncodedPairs

__all__ = ["EncodedPairs", "HardNegatives", "TokenRows"]
