"""Small real things: a corpus one can reason about, and a model of every method, trained on it in a moment."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import palmette
from palmette import Document, FakeEncoder, Model, SpaceModel, load_encoder
from palmette.encoder import Encoder
from palmette.machine.devices import has_torch
from support.tiny_encoder import save_tiny_encoder

if TYPE_CHECKING:  # methods need torch
    from palmette import FieldsModel, LayersModel, PathsModel, TaxonomyModel, TreeModel

COLOURS = ("red", "green", "blue", "white", "black", "golden")
ANIMALS = ("cat", "dog", "owl", "fox", "ant", "bee", "cow", "hen")


def documents() -> list[Document]:
    """48 documents with metadata to filter by: ``{colour} {animal}`` and a sentence about it."""
    return [
        Document(
            id=f"{colour}-{animal}",
            text=f"The {colour} {animal} lives in house {number} and sings at night.",
            metadata={"colour": colour, "animal": animal, "house": number, "tags": [colour, animal]},
        )
        for number, (colour, animal) in enumerate((c, a) for c in COLOURS for a in ANIMALS)
    ]


def many_documents(count: int = 300) -> list[Document]:
    """More documents than any shortlist, of words that some share."""
    rng = random.Random(3)
    words = [f"{a}{b}" for a in COLOURS for b in ANIMALS] + list(ANIMALS)
    return [
        Document(str(n), f"{' '.join(rng.choices(words, k=12))}. {' '.join(rng.choices(words, k=8))}.", {"n": n % 9})
        for n in range(count)
    ]


def pairs() -> list[tuple[str, str]]:
    """A question per document."""
    return [(f"where does the {d.metadata['colour']} {d.metadata['animal']} live?", d.text) for d in documents()]


def settings(**options: Any) -> dict[str, Any]:
    """Options of a short run."""
    return {"steps": 20, "batch_size": 16, "progress": False} | options


def train_tree(**options: Any) -> TreeModel:
    """A depth-5 tree over a fake encoder."""
    data = options.pop("data", None) or pairs()
    return palmette.TreeModel.fit(data, encoder=FakeEncoder(48), **settings(**{"depth": 5} | options))


def train_taxonomy(**options: Any) -> TaxonomyModel:
    """Two towers over a fake encoder, trained on pairs alone."""
    return palmette.TaxonomyModel.fit(pairs(), encoder=FakeEncoder(48), **settings(**{"dimension": 32} | options))


def train_layers(**options: Any) -> LayersModel:
    """Three layers of a fake encoder."""
    return palmette.LayersModel.fit(pairs(), encoder=FakeEncoder(48), **settings(**options))


def train_paths(**options: Any) -> PathsModel:
    """Eight leaves over a fake encoder."""
    return palmette.PathsModel.fit(pairs(), encoder=FakeEncoder(48), **settings(**{"branches": 8} | options))


def train_space(**options: Any) -> SpaceModel:
    """A learned space over a fake encoder, from two questions a document."""
    more = [(f"{d.metadata['animal']} {d.metadata['house']}", d.text) for d in documents()]
    return SpaceModel.fit(pairs() + more, encoder=FakeEncoder(48), **{"progress": False} | options)


@cache
def learner() -> Encoder:
    """A small transformer that knows these documents' words, for methods that train the encoder itself."""
    folder = Path(mkdtemp(prefix="tiny-learner-")) / "model"
    words = {word for document in documents() for word in re.findall(r"\w+", document.text.lower())}
    save_tiny_encoder(folder, words=(*sorted(words), "where", "does", "live"), width=32)
    return load_encoder(folder, device="cpu")


def with_fields() -> list[Document]:
    """The same documents with fields: a name, made of colour and animal, and the text."""
    return [replace(d, fields={"name": f"{d.metadata['colour']} {d.metadata['animal']}"}) for d in documents()]


def train_fields(**options: Any) -> FieldsModel:
    """An encoder of two fields, trained for a moment."""
    asked = [(question, document) for (question, _), document in zip(pairs(), with_fields(), strict=True)]
    chosen = {"fields": ["name", "text"], "steps": 200, "batch_size": 32, "learning_rate": 3e-3} | options
    return palmette.FieldsModel.fit(asked, encoder=learner(), **settings(**chosen))


# models shared by all tests of a process: they are immutable
fields, layers, paths = cache(train_fields), cache(train_layers), cache(train_paths)
space, taxonomy, tree = cache(train_space), cache(train_taxonomy), cache(train_tree)


METHODS: dict[str, Callable[[], Model]] = dict(
    fields=fields, layers=layers, paths=paths, space=space, taxonomy=taxonomy, tree=tree
)
if not has_torch():
    METHODS = {"space": cache(lambda: SpaceModel.untrained(FakeEncoder(48)))}
