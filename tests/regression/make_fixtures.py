"""Makes the checkpoints and indexes under ``fixtures/``; run once, at the version whose format they keep.

PYTHONPATH=plugin:adapters:tests python tests/regression/make_fixtures.py
"""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Any

os.environ.setdefault("PALMETTE_CACHE", tempfile.mkdtemp())

from palmette import (
    FakeEncoder,
    FieldsModel,
    FusionModel,
    Index,
    LayersModel,
    PathsModel,
    RetrievalData,
    TaxonomyModel,
    TreeModel,
    load_encoder,
)
from palmette.reader import Reader
from regression.api import FIXTURES, change, documents, fill
from support import readers, tiny

QUICK: dict[str, Any] = {"steps": 20, "batch_size": 16, "progress": False}


def judged() -> RetrievalData:
    """The 48 documents, a question for each, and the same questions held out."""
    queries = {f"q{i}": query for i, (query, _) in enumerate(tiny.pairs())}
    relevant = {f"q{i}": {document.id: 1} for i, document in enumerate(tiny.documents())}
    return RetrievalData("questions", tiny.documents(), queries, {"train": relevant, "dev": relevant})


def main() -> None:
    """Train, save, fill and change."""
    shutil.rmtree(FIXTURES, ignore_errors=True)
    fake = FakeEncoder(16)
    transformer = load_encoder(readers.tiny_encoder(FIXTURES / "encoder"), device="cpu", dtype="float32")
    transformer.name = "tiny-encoder"  # not the folder it lies in here
    asked = [
        (question, document) for (question, _), document in zip(tiny.pairs(), tiny.with_fields(), strict=True)
    ]
    tree = TreeModel.fit(judged(), encoder=fake, depth=4, **QUICK)
    taxonomy = TaxonomyModel.fit(judged(), encoder=fake, dimension=12, **QUICK)
    models = {
        "tree": tree,
        "tree-mlp": TreeModel.fit(judged(), encoder=fake, depth=3, split="mlp", **QUICK),
        "tree-learned": TreeModel.fit(judged(), encoder=fake, depth=3, propagation="learned", **QUICK),
        "tree-grown": tree.grow(tiny.pairs(), leaves=["LLRR", "RRLL"], **(QUICK | {"steps": 2})),
        "fields": FieldsModel.fit(
            asked,
            encoder=transformer,
            fields=["name", "text"],
            **(QUICK | {"learning_rate": 3e-3, "steps": 60}),
        ),
        "layers": LayersModel.fit(judged(), encoder=fake, **QUICK),
        "paths": PathsModel.fit(judged(), encoder=fake, branches=8, **QUICK),
        "taxonomy": taxonomy,
        "zoo": TaxonomyModel.fit(documents("zoo"), encoder=fake, dimension=12, **(QUICK | {"steps": 300})),
        "fusion": FusionModel.of([tree, taxonomy], weights=[2, 1]),
    }
    for name, model in models.items():
        if name in ("tree-mlp", "tree-learned"):
            model.save_pretrained(FIXTURES / name / "model")
            continue
        index = Index.create(FIXTURES / name / "index", model)
        fill(index, documents(name), segments=3)
        assert index.stats().segments == 3
        change(index, documents(name))
        assert index.stats().segments >= 3
        index.close()
    sentence = {"unit": "sentence", "steps": 100, "progress": False}
    Reader.fit(readers.pairs(), encoder=fake, **sentence).save_pretrained(FIXTURES / "reader-sentence")
    span = {"learning_rate": 1e-2, "dropout": 0.0, "passages": 2, "batch_size": 16, "steps": 150}
    span |= {"evaluate_every": 75} | readers.span_options()
    Reader.fit(readers.records(), encoder=transformer, **span).save_pretrained(FIXTURES / "reader-span")


if __name__ == "__main__":
    main()
