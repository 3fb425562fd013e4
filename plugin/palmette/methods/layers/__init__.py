"""Per-layer retrieval (FetchHR): every layer of a frozen encoder asks with a query of its own.

Early layers see words, late ones meaning; what one misses another finds. Documents are the encoder's ordinary vectors,
one for all layers, so an existing vector index can be searched as it is. Only small networks on the question's layers
are trained. Each begins as a copy of the encoder's last layers: nearly as good as the encoder before its first step.

``module.py`` the retrieval networks · ``start.py`` what they begin as · ``losses.py``, ``task.py`` training ·
``searching.py`` one search for all layers, and one list of it · ``explanation.py``, ``model.py`` search ·
``metrics.py`` what each layer adds, and whether a question's rarest word is found
"""

from palmette.methods.layers.config import LayersConfig, LayersSearch
from palmette.methods.layers.model import LayersModel

__all__ = ["LayersConfig", "LayersModel", "LayersSearch"]
