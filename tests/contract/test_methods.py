"""Which methods are under contract."""

from pathlib import Path

import pytest

from palmette import FakeEncoder, TaxonomyModel, TreeModel
from palmette.errors import CheckpointError, ConfigError
from palmette.methods import names
from support.tiny import METHODS


def test_every_method_is_under_contract() -> None:
    assert sorted(METHODS) == names()


def test_a_checkpoint_is_loaded_by_its_class_with_the_encoder_given(tmp_path: Path) -> None:
    path = METHODS["tree"]().save_pretrained(tmp_path / "tree")
    encoders = [FakeEncoder(48), FakeEncoder(48)]
    models = [TreeModel.from_pretrained(path, encoder=encoder) for encoder in encoders]
    assert [model.encoder for model in models] == encoders
    assert TreeModel.from_pretrained(path, encoder=encoders[0]) is models[0]
    with pytest.raises(CheckpointError, match="a 'tree' model, not 'taxonomy'"):
        TaxonomyModel.from_pretrained(path)


def test_true_is_no_one_among_search_options() -> None:
    model = METHODS["tree"]()
    assert model.search_options({"level": 1}).level == 1
    with pytest.raises(ConfigError, match="level"):
        model.search_options({"level": True})
