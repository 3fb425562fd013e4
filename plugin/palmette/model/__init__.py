"""What every trained retriever is: the hooks a method fills, and all that methods share.

``model.py`` the class · ``published.py`` to checkpoints and the Hub · ``fitting.py`` data → trained model
``loading.py`` checkpoint → model · ``scoring.py`` documents without an index · ``side.py`` one of several rankings
``mixing.py`` how much words count beside its scores
"""

from palmette.model.model import DEFAULT_ENCODER, Model, Queries
from palmette.hub.checkpointed import Checkpointed

__all__ = ["DEFAULT_ENCODER", "Model", "Checkpointed", "Queries"]
