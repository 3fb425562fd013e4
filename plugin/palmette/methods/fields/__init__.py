"""CHARM: documents of many fields (title, brand, description, …), from one pass of an encoder that is trained itself.

Fields stand in an order, short to long. A token per field follows CLS; block-triangular attention lets each field
see itself and earlier ones, so the vector h_f of a field sums up the document down to it. The aggregate
h = Σ_f w_f h_f, w = softmax(K h_CLS), finds candidates; the field that matches best ranks them and says why.
Queries go the same way. The loss is InfoNCE on the aggregate, on each field, and on the best field.

Read differently from the paper, each with the paper's way as an option: vectors have unit length
(``similarity="inner_product"``); a field's vector is the mean of the words it stands for where the encoder was
trained so (``pooling="token"``); a search in two stages adds half of the aggregate's similarity to half of the best
field's (``blend=0``). The tokens of fields share the place of CLS and begin as copies of it, so that an
untrained model of one field is the encoder it began as.

``config.py`` options · ``reading.py`` from users' documents to texts by field · ``tokens.py`` to token ids ·
``layout.py`` where tokens stand, and what sees what · ``module.py`` the encoder, ``passes.py`` many texts through it ·
``losses.py`` equations 2 to 7 · ``start.py`` where training begins ·
``negatives.py``, ``task.py``, ``pretraining.py`` training · ``queries.py`` without
labels · ``searching.py``, ``explanation.py``, ``model.py`` search
"""

from palmette.methods.fields.config import FieldsConfig, FieldsSearch, FieldsTraining
from palmette.methods.fields.model import FieldsModel
from palmette.methods.fields.reading import FieldsWarning

__all__ = ["FieldsConfig", "FieldsModel", "FieldsSearch", "FieldsTraining", "FieldsWarning"]
