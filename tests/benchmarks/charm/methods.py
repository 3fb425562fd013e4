"""What is compared: each a set of options of ``FieldsModel.fit``, and the ways of searching it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Method(NamedTuple):
    """A row of the table."""

    options: Mapping[str, Any]
    modes: tuple[str, ...] = (
        "aggregate",
        "best",
        "two stages",
        "two stages, blended",
        "aggregate and words",
        "two stages, blended, and words",
    )
    fields: str = "all of them"
    """``title``, ``joined`` (one field that holds all), ``reversed``, or all of them."""


ONE = ("aggregate", "aggregate and words")

METHODS: dict[str, Method] = {
    "untuned encoder, title": Method({"steps": 0}, ONE, "title"),
    "untuned encoder, all fields joined": Method({"steps": 0}, ONE, "joined"),
    "CHARM, untrained": Method({"steps": 0}),
    "title only": Method({}, ONE, "title"),
    "all fields joined": Method({}, ONE, "joined"),
    "MVR": Method(
        {
            "attention": "full",
            "aggregate_weight": 0.0,
            "fields_weight": 0.0,
            "diversity_weight": 0.01,
        },
        ("best",),
    ),
    "CHARM": Method({}),
    "CHARM, the paper's pooling": Method({"pooling": "token"}),
    "no L_agg": Method({"aggregate_weight": 0.0}),
    "no L_fields": Method({"fields_weight": 0.0}),
    "no L_max": Method({"best_weight": 0.0}),
    "with L_div": Method({"diversity_weight": 0.01}),
    "no whole document": Method({"whole": False}),
    "no vectors of words": Method({"query_words": "never"}),
    "with vectors of words": Method({"query_words": "always"}),
    "full attention": Method({"attention": "full"}),
    "diagonal attention": Method({"attention": "diagonal"}),
    "a graph: the text sees the title": Method({"sees": ("text=title",)}),
    "plain queries": Method({"queries": "plain"}),
    "fields from long to short": Method({}, fields="reversed"),
    "from long to short, no whole document": Method({"whole": False}, fields="reversed"),
    "pretrained on the catalogue": Method({"pretrain_steps": 400}),
    "negatives mined": Method({"negatives": "mined"}),
    "negatives by words": Method({"negatives": "words"}),
    "taught by words": Method({"targets": "words"}),
}


def fields_of(method: Method, fields: Mapping[str, str]) -> dict[str, str]:
    """The fields that a method reads."""
    if method.fields == "title":
        return {"title": "title"}
    if method.fields == "joined":
        return {"all": "+".join(fields.values())}
    return dict(reversed(fields.items())) if method.fields == "reversed" else dict(fields)
