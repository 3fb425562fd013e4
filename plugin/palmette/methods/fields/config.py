"""Options of training and of searching."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field

from palmette.config import FILLED_IN, Config
from palmette.errors import ConfigError

WHOLE = "all"
"""Name of the field that joins all others."""

BLEND = 0.5
"""Share of the aggregate's similarity in a two-stage score, unless held-out queries choose another."""
BLENDS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares that held-out queries choose from."""

TRAINING = {"steps": 400, "batch_size": 64, "learning_rate": 5e-5, "warmup": 0.1, "decay": "linear"}
"""Defaults of the training loop: the whole encoder learns, so in few and small steps."""


def parse_mapping(mapping: Any) -> tuple[str, ...]:
    """Items ``name`` or ``name=value`` of a mapping, a list or a comma-separated str, for JSON and shells."""
    if mapping is None:
        return ()
    if isinstance(mapping, str):
        return tuple(item.strip() for item in mapping.split(",") if item.strip())
    if isinstance(mapping, set | frozenset):
        raise ConfigError(f"give a list, not a set, which has no order: {sorted(map(str, mapping))}")
    if not isinstance(mapping, Mapping):
        items = tuple(mapping) if isinstance(mapping, Iterable) else (mapping,)
        if strange := [item for item in items if not isinstance(item, str)]:
            raise ConfigError(f"names must be str, got {strange[0]!r}")
        return items
    if strange := [key for key in mapping if not isinstance(key, str) or "=" in key]:
        raise ConfigError(f"{strange[0]!r} cannot be a name here: give a str without '='")
    if empty := [key for key, value in mapping.items() if value is None]:
        raise ConfigError(f"{empty[0]!r} is given None: name its source, or leave it out")
    values = {k: "+".join(v) if isinstance(v, list | tuple) else str(v) for k, v in mapping.items()}
    return tuple(key if key == value else f"{key}={value}" for key, value in values.items())


Items = Annotated[tuple[str, ...], BeforeValidator(parse_mapping)]
Weight = Annotated[float, Field(ge=0)]


class FieldsConfig(Config):
    """Options of the field encoder and of its training."""

    fields: Items = ()
    """Fields in their order, short to long: ``name`` or ``name=source``, or a mapping of them. A source is a key of
    the document's fields or metadata (``metadata.brand``, ``specs.size``) or ``text``. Empty to detect them."""
    attention: Literal["triangular", "printed", "full"] = "triangular"
    """Fields that a field attends to besides itself: the words of all earlier ones (``triangular``), these and their
    special tokens (``printed``, equation 3 to the letter), or those of all (``full``)."""
    whole: bool = True
    """Add a field ``all``: all fields concatenated, attending only to itself, which is the encoder's own vector of the
    document. Without it a model starts far below its encoder; with it a document costs twice the tokens."""
    pooling: Literal["auto", "token", "mean"] = "auto"
    """A field's vector: the state of its ``token``, or the ``mean`` state of its words; ``auto`` pools as the encoder
    was trained to."""
    similarity: Literal["cosine", "inner_product"] = "cosine"
    """Cosine, or the inner product of vectors of any length."""
    document_tokens: Annotated[int, Field(ge=8)] | None = None
    """Maximum tokens of a document; by default the encoder's maximum."""
    query_tokens: Annotated[int, Field(ge=1)] = 64
    """Maximum tokens of a query."""
    trained_layers: Annotated[int, Field(ge=0)] | None = None
    """Number of last encoder layers to train; by default the whole encoder. With 0 the encoder is frozen and encodes
    each text once; only a linear map and a weight per field learn, in minutes on a CPU."""
    dropout: Annotated[float, Field(ge=0, le=0.9)] = 0.1
    """Dropout while the encoder trains."""
    temperature: Annotated[float, Field(gt=0)] = 0.05
    """Divisor τ of similarities in the loss."""
    aggregate_weight: Weight = 1.0
    """λ_agg, weight of the aggregate's loss."""
    fields_weight: Weight = 1.0
    """λ_fields, weight of the mean loss of the fields."""
    best_weight: Weight = 1.0
    """λ_max, weight of the best field's loss."""
    chunk: Annotated[int, Field(ge=0)] = 32
    """Gradient-cache chunk size: texts encoded at once, with the gradients of the whole batch; 0 for no chunks."""
    stored: Literal["int8", "float32"] = "int8"
    """Number type of field vectors in an index."""
    limits: Annotated[tuple[int, ...], FILLED_IN] = ()
    """Tokens of each field."""
    dimension: Annotated[int, FILLED_IN] = 0
    """Width of the vectors."""
    labelled: Annotated[bool, FILLED_IN] = True
    """Whether labelled pairs trained the model. Without them it keeps the encoder's own vectors."""

    blend: Annotated[float | None, FILLED_IN] = None
    """Share of the aggregate in a two-stage score that held-out queries chose; ``None`` for half."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {  # section 4.1 and table 6 (US); its 200 epochs are 200 · pairs / 1,024 steps
            "attention": "printed", "whole": False, "pooling": "token", "similarity": "inner_product",
            "document_tokens": 400, "query_tokens": 64, "temperature": 0.1, "stored": "float32",
            "learning_rate": 5e-6, "batch_size": 1024, "warmup": 0.1, "decay": "linear", "clip": 1.0,
        }
    }  # fmt: skip

    def check(self) -> None:
        """Conditions between options."""
        if not any((self.aggregate_weight, self.fields_weight, self.best_weight)):
            raise ConfigError("fields: aggregate_weight, fields_weight and best_weight are all 0; raise one")
        if len(self.limits) not in (0, len(self.fields)):
            raise ConfigError(f"fields: {len(self.fields)} fields need as many limits, got {len(self.limits)}")

    @property
    def order(self) -> list[str]:
        """Field names in their order."""
        return [item.partition("=")[0] for item in self.fields]

    @property
    def reads_whole(self) -> bool:
        """True if the last field joins all others."""
        return self.whole and len(self.fields) > 1 and self.order[-1] == WHOLE

    @property
    def attended(self) -> NDArray[np.bool_]:
        """[F, F] fields (columns) that each field (row) attends to, itself included."""
        full = np.ones((len(self.fields), len(self.fields)), bool)
        table = full if self.attention == "full" else np.tril(full)
        if self.reads_whole:
            table[-1, :-1] = table[:-1, -1] = False
        return table


class FieldsSearch(Config):
    """Options of a search."""

    by: Literal["two_stage", "aggregate", "best"] = "two_stage"
    """Rank by the ``aggregate``, by the ``best`` field of every document, or ``two_stage``: a shortlist by the first,
    ranked by the second."""
    shortlist: Annotated[int, Field(ge=1)] = 100
    """Candidates of the second stage; never fewer than ``k``."""
    blend: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of the aggregate's similarity in a two-stage score, 0 … 1, beside the best field's (the paper: 0). By
    default what held-out queries chose, else half; 0 where ``fields`` are chosen; 1 without labelled pairs."""
    fields: Items = ()
    """Only these fields count; words (``lexical="auto"``), which match any field, do not. Empty for all."""
    weights: Items = ()
    """Factors of fields' similarities, ``field=weight``, before the best one is chosen."""

    def check(self) -> None:
        """Conditions between options."""
        if mapped := [item for item in self.fields if "=" in item]:
            raise ConfigError(
                f"fields search: fields names those that count, and {mapped[0]!r} says where one is read from, which a "
                "model is told when it is trained (FieldsModel.fit(…, fields=…)): give "
                f"fields={[item.partition('=')[0] for item in self.fields]!r}"
            )
        if self.by == "aggregate" and (self.fields or self.weights):
            raise ConfigError(
                "by='aggregate' compares all fields in one vector: leave fields and weights out, or search by "
                "'two_stage' or 'best'"
            )
        for item in self.weights:
            try:
                good = 0 < float(item.partition("=")[2]) < float("inf")
            except ValueError:
                good = False
            if not good:
                raise ConfigError(f"a weight is field=number above 0, such as 'title=1.5'; got {item!r}")

    @property
    def factors(self) -> dict[str, float]:
        """Given weights by field."""
        return {name: float(weight) for name, _, weight in (item.partition("=") for item in self.weights)}
