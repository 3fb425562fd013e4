"""Keyword options of ``FieldsModel.fit``, for editors; written from ``config.py`` by ``make options``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from palmette.training import CommonOptions

__all__ = ["FieldsOptions"]


class FieldsOptions(CommonOptions, total=False):
    """What ``FieldsModel.fit`` takes; see :class:`FieldsConfig` and :class:`FieldsTraining`."""

    fields: Mapping[str, str] | Sequence[str]
    """The fields in their order, short to long: ``name`` or ``name=source``, where a source is a key of the
    document's fields or metadata (``metadata.brand``, ``specs.size``) or ``text``. Empty to find them.
    Default: ``()``.
    """

    attention: Literal["triangular", "diagonal", "full"]
    """Which field sees which: all earlier ones (``triangular``), none (``diagonal``), all (``full``). Default:
    ``'triangular'``.
    """

    whole: bool
    """One more field, ``all``, that holds every field's text on end and sees itself alone: what the encoder
    would make of the document. Without it a model starts far below its encoder, since words of early fields
    never know the later ones; with it a document costs twice the tokens. Default: ``True``.
    """

    sees: Mapping[str, Sequence[str]]
    """Another graph without cycles: ``field=seen+seen`` for each field that sees others. Default: ``()``."""

    pooling: Literal["auto", "token", "mean"]
    """A field's vector: the state of its ``token``, or the ``mean`` of the words it stands for; ``auto`` is as
    the encoder was trained. Default: ``'auto'``.
    """

    queries: Literal["fields", "plain"]
    """With the ``fields``' tokens and aggregated as documents are, or ``plain``, as the encoder reads them.
    Default: ``'fields'``.
    """

    similarity: Literal["cosine", "inner_product"]
    """``cosine``, or the ``inner_product`` of vectors of any length. Default: ``'cosine'``."""

    budgets: Mapping[str, int]
    """``field=tokens``, where a field is to be cut at another length than is chosen for it. Default: ``()``."""

    document_tokens: int | None
    """Tokens of a document at most; by default what the encoder takes. Default: ``None``."""

    query_tokens: int
    """Tokens of a query at most. Default: ``64``."""

    trained_layers: int | None
    """Only so many of the encoder's last layers learn; by default everything does. With 0 the encoder stays as
    it is and reads each text once; what learns is how its vectors are turned and weighed, which takes
    minutes on a CPU. Default: ``None``.
    """

    dropout: float
    """Share of hidden values left out while the encoder learns. Default: ``0.1``."""

    query_words: Literal["auto", "always", "never"]
    """Where the encoder stays as it is, each token of the queries that train may learn a vector that is added
    to a query's: ``always``, ``never``, or where nobody judged (``auto``). Default: ``'auto'``.
    """

    word_steps: int
    """Steps more for these vectors alone, where nobody judged; each costs a hundredth of a second or two.
    Default: ``2000``.
    """

    temperature: float
    """What similarities are divided by (τ). Default: ``0.05``."""

    aggregate_weight: float
    """λ_agg, of the loss of the aggregated vectors. Default: ``1.0``."""

    fields_weight: float
    """λ_fields, of the mean of the fields' own losses. Default: ``1.0``."""

    best_weight: float
    """λ_max, of the loss of the best field. Default: ``1.0``."""

    diversity_weight: float
    """Of the loss of multi-view representations that pushes fields apart; 0 for none. Default: ``0.0``."""

    negatives: Literal["given", "mined", "words", "none"]
    """One hard negative a query: among those ``given`` (graded 0), or ``mined`` from what the model itself
    finds, or from what shares ``words`` (BM25); ``none`` for those of the batch alone. Default:
    ``'given'``.
    """

    mining_rounds: int
    """How often ``mined`` negatives are looked for in a run. Default: ``3``."""

    mining_depth: int
    """Results among which they are drawn. Default: ``30``."""

    chunk: int
    """Texts that go through the encoder at once, each chunk twice: less memory, the very same gradients. 0 for
    all at once. Default: ``32``.
    """

    pretrain_steps: int
    """Steps of masked language modelling on the documents before the training. Default: ``0``."""

    pretrain_rate: float
    """Peak learning rate of that. Default: ``0.0001``."""

    targets: Literal["auto", "answers", "words"]
    """What a query's documents are learned from: the known ``answers``, or what the encoder as it begins and
    shared ``words`` (BM25) rank first together; ``auto`` is the latter where nobody judged. Default:
    ``'auto'``.
    """

    stored: Literal["int8", "float16", "float32"]
    """How an index keeps the vectors of fields: a byte a number, two, or four. Default: ``'int8'``."""

    steps: int
    """Optimiser steps at most. Default: ``400``."""

    batch_size: int
    """Pairs per step (and per process). Default: ``64``."""

    learning_rate: float
    """Peak rate of AdamW. Default: ``5e-05``."""

    weight_decay: float
    """Decoupled weight decay of matrices (never of biases and scales). Default: ``0.0``."""

    warmup: float
    """Share of the steps in which the rate rises. Default: ``0.1``."""

    decay: Literal["cosine", "linear", "constant"]
    """How the rate falls afterwards, to zero at the last step. Default: ``'linear'``."""
