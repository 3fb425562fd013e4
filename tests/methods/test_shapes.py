"""Every shape of every method trains, is kept in a checkpoint, and searches as before."""

from functools import partial
from pathlib import Path

import pytest

from palmette import Index, Model, load_model
from support import shop
from support.taxonomies import train_zoo, zoo
from support.tiny import documents, train_layers, train_paths, train_tree

RANDOM_TREE = {"start": "random", "depth": 3}
SHAPES = [
    partial(train_tree, steps=0),
    partial(train_tree, **RANDOM_TREE, propagation="learned"),
    partial(train_tree, **RANDOM_TREE, split="cross_attention"),
    partial(train_zoo),
    partial(train_zoo, queries="lookup", documents="lookup"),
    partial(train_zoo, documents="text"),
    partial(train_zoo, documents="lookup"),
    partial(train_zoo, preset="paper"),
    partial(train_paths, branches=3, height=2),
    partial(train_paths, branches=None),
    partial(train_paths, start="random"),
    partial(train_paths, negatives="leaves", refresh=1, steps=8),
    partial(train_paths, preset="paper", encoder_learns="nothing"),
    partial(shop.train, attention="full", pooling="token", fields_weight=0.0),
    partial(shop.train, similarity="inner_product", temperature=1.0),
    partial(shop.train, trained_layers=0, chunk=0, stored="float32"),
    partial(train_layers, preset="paper"),
    partial(train_layers, layers=(1, 3)),
]


@pytest.mark.parametrize("train", SHAPES, ids=lambda train: f"{train.func.__name__} {train.keywords}")
def test_a_checkpoint_is_the_model(train: partial[Model], tmp_path: Path) -> None:
    steps = train.keywords.get("steps", 2)
    model = train(steps=steps)
    assert model.record.steps == steps
    model.save_pretrained(tmp_path / "model")
    again = load_model(tmp_path / "model")
    assert again is not model
    for name in ("fingerprint", "config", "record"):
        assert getattr(again, name) == getattr(model, name)
    assert again.describe() == model.describe()
    given = {"fields": shop.shop, "taxonomy": zoo}.get(model.method, documents)()
    found, refound = (Index.build(given, one).search("owl 3", k=7) for one in (model, again))
    assert len(found) == 7
    assert refound == found
