"""What is compared: each a set of options of ``FieldsModel.fit``, and the ways of searching it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from charm.bench import MODES
from torch import Tensor

from palmette import FieldsModel
from palmette.methods.fields.config import FieldsConfig
from palmette.methods.fields.losses import losses
from palmette.methods.fields.training import FieldsTask


def diversity(logits: Tensor, target: Tensor) -> Tensor:
    """L_Div (equation 7): −ln softmax of the best-matching field over the fields of each query's document.

    Args:
        logits: [F, B, M] similarities by field, divided by τ.
        target: [B] column of each query's document.
    """
    own = logits[:, torch.arange(len(target), device=target.device), target]  # [F, B]
    return (own.logsumexp(0) - own.amax(0)).mean()


def mvr_loss(
    config: FieldsConfig, queries: Tensor, fields: Tensor, aggregate: Tensor, target: Tensor, known: Tensor
) -> Tensor:
    """L_MVR = L_Max + .01 L_Div, of multi-view representations."""
    by_field = torch.einsum("bd,mfd->fbm", queries, fields) / config.temperature
    _, _, best = losses(queries, fields, aggregate, target, known, config.temperature)
    return best + 0.01 * diversity(by_field, target)


class MVRModel(FieldsModel):
    """Multi-view representations: every vector sees the whole document, and a loss keeps them apart."""

    @classmethod
    def task(cls, *given: Any, **named: Any) -> tuple[FieldsConfig, FieldsTask]:
        config, task = super().task(*given, **named)
        task.objective = mvr_loss
        return config, task


class Method(NamedTuple):
    """A row of the table."""

    options: Mapping[str, Any]
    modes: tuple[str, ...] = tuple(MODES)
    fields: str = "all of them"
    """``title``, ``joined`` (one field that holds all), ``reversed``, or all of them."""
    model: type[FieldsModel] = FieldsModel


ONE = ("aggregate", "aggregate and words")

METHODS: dict[str, Method] = {
    "untuned encoder, all fields joined": Method({"steps": 0}, ONE, "joined"),
    "title only": Method({}, ONE, "title"),
    "all fields joined": Method({}, ONE, "joined"),
    "all fields joined, 144 tokens": Method({"document_tokens": 144}, ONE, "joined"),
    "MVR": Method({"attention": "full", "aggregate_weight": 0.0, "fields_weight": 0.0}, ("best",), model=MVRModel),
    "CHARM": Method({}),
    "CHARM, the paper's pooling": Method({"pooling": "token"}),
    "equation 3 as printed": Method({"attention": "printed"}),
    "no L_agg": Method({"aggregate_weight": 0.0}),
    "no L_fields": Method({"fields_weight": 0.0}),
    "no L_max": Method({"best_weight": 0.0}),
    "no whole document": Method({"whole": False}),
    "full attention": Method({"attention": "full"}),
    "diagonal attention": Method({"attention": "diagonal"}),
    "plain queries": Method({"queries": "plain"}),
    "fields from long to short": Method({}, fields="reversed"),
}


def fields_of(method: Method, fields: Mapping[str, str]) -> dict[str, str]:
    """The fields that a method reads."""
    if method.fields == "title":
        return {"title": "title"}
    if method.fields == "joined":
        return {"all": "+".join(fields.values())}
    return dict(reversed(fields.items())) if method.fields == "reversed" else dict(fields)
