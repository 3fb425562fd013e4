"""CHARM: documents of many fields (title, brand, description, …) from one pass of an encoder that is trained itself.

The fields have an order, short to long. One token per field follows CLS; block-triangular attention lets each field
attend to itself and to earlier ones, so the vector h_f of a field describes the document down to it. The aggregate
h = Σ_f w_f h_f, w = softmax(K h_CLS), finds candidates; the best matching field ranks them and explains the hit.
Queries take the same way. The loss is InfoNCE on the aggregate, on each field, and on the best field.

Deviations from the paper (``preset="paper"`` undoes them): vectors have unit length; a field's vector is the mean of
its words' states where the encoder was trained so; a last field ``all`` holds the encoder's own vector of the whole
document; half of a two-stage score is the aggregate's (``blend=0`` in the paper). Field tokens share the position of
CLS and start as copies of it, so an untrained model of one field equals its encoder.

Letters: B batch, M documents of a batch, N documents, F fields, T tokens, C token codes, w hidden width, d dimension.
"""

from palmette.methods.fields.config import FieldsConfig, FieldsSearch
from palmette.methods.fields.documents import FieldsWarning
from palmette.methods.fields.model import FieldsModel

__all__ = ["FieldsConfig", "FieldsModel", "FieldsSearch", "FieldsWarning"]
