"""What every trained retriever is: the hooks a method fills, and all that methods share.

``model.py`` the class · ``fitting.py`` data → trained model · ``loading.py`` checkpoint → model
``mixing.py`` how much words count beside its scores
"""

from palmette.model.model import DEFAULT_ENCODER, Model, Queries

__all__ = ["DEFAULT_ENCODER", "Model", "Queries"]
