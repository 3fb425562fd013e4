"""Per-layer retrieval (FetchHR): every layer of a frozen encoder searches with a query vector of its own.

Early layers represent words, late ones meaning; what one misses another finds. Documents keep the encoder's ordinary
vectors, one for all layers, so an existing vector index serves as it is. Only small networks on the layers of the
query encoder are trained. Each starts as a copy of the encoder's last layers: nearly as good as the encoder at once.

Letters: Q queries, B batch, T tokens, L layers, h width of states, w width of a network, d width of vectors, k places.

``config.py`` options · ``module.py`` retrieval networks · ``init.py`` their initial weights · ``training.py`` ·
``search.py`` one list from all layers · ``model.py`` the hooks
"""

from palmette.methods.layers.config import LayersConfig, LayersSearch
from palmette.methods.layers.model import LayersModel

__all__ = ["LayersConfig", "LayersModel", "LayersSearch"]
