"""Writes the record anew, after a change of behaviour that is meant; the commit says which blocks change, and why.

PYTHONPATH=plugin:adapters:tests python tests/regression/make.py [fixture …]
PYTHONPATH=plugin:adapters:tests python tests/regression/make.py --fixtures     # trains the fixtures anew first

A new block begins as ``{"options": {…}, "cases": {}}`` in its file; an option that is deleted takes its blocks along.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from palmette import FakeEncoder, FieldsModel, Index, LayersModel, PathsModel, TaxonomyModel, TreeModel
from palmette.machine import devices
from palmette.reader import Reader
from regression import api, record, vectors
from support import readers, taxonomies, tiny

ALONE = ("tree-learned",)
"""Models that are kept without an index."""


def make_fixtures() -> None:
    """Train a model of every kind on tiny data, and keep it, most within an index."""
    how: dict[str, Any] = {"steps": 20, "batch_size": 16, "progress": False}
    fake, asked = {"encoder": FakeEncoder(16), **how}, tiny.pairs()
    learned = {"encoder": str(api.FIXTURES / "encoder"), "device": "cpu", "progress": False}
    named = [(question, document) for (question, _), document in zip(asked, tiny.with_fields(), strict=True)]
    models = {
        "tree": TreeModel.fit(asked, **fake, start="random", depth=4),
        "tree-clusters": TreeModel.fit(asked, **fake, depth=3),
        "tree-learned": TreeModel.fit(asked, **fake, start="random", depth=3, propagation="learned"),
        "paths": PathsModel.fit(asked, **fake, branches=8),
        "layers": LayersModel.fit(asked, **fake),
        "taxonomy": TaxonomyModel.fit(asked, **fake, dimension=12),
        "zoo": TaxonomyModel.fit(taxonomies.zoo(), **fake | {"steps": 300}, dimension=12),
        "fields": FieldsModel.fit(
            named, **learned, fields=["name", "text"], steps=60, batch_size=16, learning_rate=3e-3
        ),
        "reader-sentence": Reader.fit(readers.pairs(), encoder=FakeEncoder(64), unit="sentence", progress=False),
        "reader-span": Reader.fit(
            readers.records(), **learned | readers.span_options(), steps=60, batch_size=16, learning_rate=3e-3
        ),
    }
    for name, model in models.items():
        if name in api.TRAINED_ENCODER:
            model.encoder.name = "tiny-encoder"  # of whoever trains them anew
        place = api.FIXTURES / name
        shutil.rmtree(place, ignore_errors=True)
        if isinstance(model, Reader):
            model.save_pretrained(place)
        elif name in ALONE:
            model.save_pretrained(place / "model")
        else:
            with Index.create(place / "index", model) as index:
                api.fill(index, api.documents(name), segments=3)
                api.change(index, api.documents(name))


def main() -> None:
    devices.cpu_has_bfloat16 = lambda: False  # type: ignore[assignment]  # the precision of tests/conftest.py
    vectors.RecordedVectors.recording = True
    names = sys.argv[1:]
    if names == ["--fixtures"]:
        make_fixtures()
        names = []
    for name in names or sorted(path.stem for path in record.RECORDS.glob("*.json")):
        blocks = record.load(name)
        for title, block in blocks.items():
            with tempfile.TemporaryDirectory() as folder:
                if name == "others":
                    block["cases"] = record.others(Path(folder))
                    continue
                found = record.cases(name, block["options"])
                block["cases"] = {
                    case: result
                    for case, result in found.items()
                    if case == record.same_as(case) or result != found[record.same_as(case)]
                }
                if record.has_index(name):
                    block["cases"]["opened"] = record.opened(name, Path(folder) / title, block["options"])
        record.save(name, blocks)
    if not names or "fields" in names:
        vectors.save(api.recorded_vectors())


if __name__ == "__main__":
    main()
