"""Several trained models over one set of documents.

model.py        FusionModel: a weighted sum of scores, or of reciprocal ranks; config.py, its options
ranks.py        reciprocal-rank fusion
members.py      the members' arrays, views and checkpoints side by side
"""

from palmette.fusion.config import FusionConfig, FusionSearch
from palmette.fusion.model import FusionModel

__all__ = ["FusionConfig", "FusionModel", "FusionSearch"]
