"""A shop of 60 products with fields, and an encoder small enough to train in a moment."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from palmette import Document, FieldsModel, RetrievalData, load_data
from support.alone import Index
from support.tiny import learner

BRANDS = ("red", "blue", "golden")
KINDS = ("cat", "dog", "owl", "fox")
FIELDS = {"brand": "metadata.brand", "title": "title", "text": "text"}


def shop() -> list[Document]:
    """Products by brand, kind and number; every tenth has no title."""
    products = []
    for number in range(60):
        brand, kind = BRANDS[number % 3], KINDS[number % 4]
        title = {} if number % 10 == 9 else {"title": f"{kind} {number}"}
        text = f"The {kind} lives in house {number} and sings at night."
        products.append(Document(str(number), text, {"brand": brand, "price": number}, title))
    return products


def questions() -> list[tuple[str, Document]]:
    """A question for each product."""
    return [(f"{p.metadata['brand']} house {p.id}", p) for p in shop()]


def unheld(data: Any) -> RetrievalData:
    """Data of which nothing is held out, so that the last weights are kept."""
    loaded = load_data(data, dev_fraction=0)
    return replace(loaded, qrels={**loaded.qrels, "dev": {}})


def train(**options: Any) -> FieldsModel:
    """A model trained for a moment."""
    settings: dict[str, Any] = {"fields": FIELDS, "whole": False, "steps": 3, "batch_size": 8} | options
    return FieldsModel.fit(settings.pop("data", unheld(questions())), encoder=learner(), progress=False, **settings)


@cache
def quick() -> FieldsModel:
    return train()


@cache
def model() -> FieldsModel:
    """One trained a little longer."""
    return train(steps=100, learning_rate=3e-3, temperature=0.2)


@cache
def index() -> Index:
    """The shop, searched by it; not to be changed."""
    return Index.build(shop(), model())
