"""palmette: finds the passages that answer a question, and says why.

    from palmette import Index

    index = Index.build("notes", path="my-index")   # a folder, a file, texts, documents of a framework
    for hit in index.search("how do I …?", k=5):
        print(hit.score, hit.citation, hit.explain())

Nothing has to be trained. Where there are questions with the documents that answer them, a model may be:
``SpaceModel.fit(data)``, and ``Index.build("notes", model)``.

Names are loaded when they are first used, so that importing palmette costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from palmette.machine.cores import prepare_environment

if TYPE_CHECKING:
    from palmette.data import RetrievalData as RetrievalData
    from palmette.data import load_data as load_data
    from palmette.encoder import Encoder as Encoder
    from palmette.encoder import FakeEncoder as FakeEncoder
    from palmette.encoder import load_encoder as load_encoder
    from palmette.errors import PalmetteError as PalmetteError
    from palmette.evaluation import evaluate as evaluate
    from palmette.index import Index as Index
    from palmette.learning.questions import write_questions as write_questions
    from palmette.methods import load_model as load_model
    from palmette.methods.base import Model as Model
    from palmette.methods.fields import FieldsModel as FieldsModel
    from palmette.methods.layers import LayersModel as LayersModel
    from palmette.methods.paths import PathsModel as PathsModel
    from palmette.methods.space import SpaceModel as SpaceModel
    from palmette.methods.taxonomy import TaxonomyModel as TaxonomyModel
    from palmette.methods.tree.model import TreeModel as TreeModel
    from palmette.ranking.boost import recency as recency
    from palmette.reader import Answer as Answer
    from palmette.reader import Reader as Reader
    from palmette.sample import sample_data as sample_data
    from palmette.sources.passages import PassageOptions as PassageOptions
    from palmette.types import Document as Document
    from palmette.types import Explanation as Explanation
    from palmette.types import Hit as Hit
    from palmette.types import Pair as Pair
    from palmette.types import Part as Part
    from palmette.types import Passage as Passage

__version__ = "0.1.0"

prepare_environment()

_NAMES = {
    "data": ("RetrievalData", "load_data"),
    "encoder": ("Encoder", "FakeEncoder", "load_encoder"),
    "errors": ("PalmetteError",),
    "evaluation": ("evaluate",),
    "index": ("Index",),
    "learning.questions": ("write_questions",),
    "methods": ("load_model",),
    "methods.fields": ("FieldsModel",),
    "methods.layers": ("LayersModel",),
    "methods.paths": ("PathsModel",),
    "methods.space": ("SpaceModel",),
    "methods.taxonomy": ("TaxonomyModel",),
    "methods.tree.model": ("TreeModel",),
    "methods.base": ("Model",),
    "ranking.boost": ("recency",),
    "reader": ("Answer", "Reader"),
    "sample": ("sample_data",),
    "sources.passages": ("PassageOptions",),
    "types": ("Document", "Explanation", "Hit", "Pair", "Part", "Passage"),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted([*_HOME, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'palmette' has no attribute {name!r}")
    from palmette.errors import load_name

    return load_name(f"palmette.{_HOME[name]}", name)


def __dir__() -> list[str]:
    return __all__
