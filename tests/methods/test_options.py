"""Options of the methods and of the loop: what is refused, what earlier versions stored, and the papers' recipes."""

from typing import Any

import pytest

from palmette.config import Config
from palmette.errors import ConfigError
from palmette.methods.fields import FieldsConfig
from palmette.methods.layers.config import LayersConfig
from palmette.methods.paths.config import PathsConfig, PathsSearch
from palmette.methods.taxonomy.config import TaxonomyConfig
from palmette.methods.tree import TreeConfig
from palmette.training.config import TrainingConfig

NAMED: dict[type[Config], list[dict[str, Any]]] = {
    TreeConfig: [
        {"depth": 0}, {"depth": 15}, {"dropout": 1.0}, {"sharpness": 0.0}, {"sharpness": float("inf")},
        {"split": "axe"}, {"start": "principal"}, {"ranking": "words"},
    ],
    TrainingConfig: [
        {"steps": -1}, {"batch_size": 1}, {"learning_rate": 0}, {"warmup": 2}, {"seed": -1},
    ],
}  # fmt: skip
"""Values out of range: the message names the option."""

REFUSED: list[tuple[type[Config], dict[str, Any], str]] = [
    *((config, options, next(iter(options))) for config, listed in NAMED.items() for options in listed),
    (FieldsConfig, {"temperature": 0.0}, "temperature must be above 0"),
    (FieldsConfig, {"aggregate_weight": 0.0, "fields_weight": 0.0, "best_weight": 0.0}, "are all 0; raise one"),
    (FieldsConfig, {"stored": "float16"}, "stored must be 'int8' or 'float32', got 'float16'"),
    (FieldsConfig, {"fields": {"text"}}, "give a list, not a set"),
    (FieldsConfig, {"fields": {"a=b": "title"}}, "'a=b' cannot be a name"),
    (FieldsConfig, {"fields": {"a": None}}, "'a' is given None"),
    (LayersConfig, {"layers": (2, 1)}, "rising"),
    (LayersConfig, {"start": "random"}, "trains='all'"),
    (PathsConfig, {"branches": 2000, "height": 3}, "8,000,000,000 leaves"),
    (PathsConfig, {"margin": 0.0}, "margin must be above 0"),
    (PathsSearch, {"visit": 0.0}, "visit must be a share"),
    (PathsSearch, {"beam": 0}, "beam must be at least 1"),
    (TaxonomyConfig, {"queries": "lookup"}, "goes with documents='lookup'"),
    (TaxonomyConfig, {"correction": 3.0}, "correction must be at most 2"),
    (TaxonomyConfig, {"hard_share": 1.5}, "hard_share must be at most 1"),
]


@pytest.mark.parametrize(("config", "options", "words"), REFUSED, ids=str)
def test_options_that_do_not_fit_are_refused(config: type[Config], options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config(**options)


@pytest.mark.parametrize("config", [TreeConfig, FieldsConfig, LayersConfig, PathsConfig, TaxonomyConfig])
def test_an_option_of_another_version_is_refused(config: type[Config]) -> None:
    stored = {**config.preset("paper"), "space": "encoder"}
    stored = {name: value for name, value in stored.items() if name in config.names() or name == "space"}
    with pytest.raises(ConfigError, match="knows no 'space': read it with the version .* or train the model again"):
        config.from_dict(stored)


def test_values_of_another_version_are_refused() -> None:
    with pytest.raises(ConfigError, match="encoder_learns must be 'nothing' or 'all', got 'last'"):
        PathsConfig.from_dict({"encoder_learns": "last"})
    with pytest.raises(ConfigError, match="pooling must be 'both' or 'cls', got 'mean'"):
        LayersConfig.from_dict({"pooling": "mean"})
