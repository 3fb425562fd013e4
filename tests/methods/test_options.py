"""Options of the methods and of the loop: what is refused, what earlier versions stored, and the papers' recipes."""

from typing import Any

import pytest

from palmette.config import Config
from palmette.errors import ConfigError
from palmette.methods import model_class
from palmette.methods.fields import FieldsConfig
from palmette.methods.layers.config import LayersConfig
from palmette.methods.paths.config import PathsConfig, PathsSearch
from palmette.methods.taxonomy.config import TaxonomyConfig
from palmette.methods.tree import TreeConfig
from palmette.training.config import TrainingConfig, fit_configs

NAMED: dict[type[Config], list[dict[str, Any]]] = {
    TreeConfig: [
        {"depth": 0}, {"depth": 15}, {"dropout": 1.0}, {"sharpness": 0.0}, {"sharpness": float("inf")},
        {"schedule": "uniform"}, {"split": "axe"}, {"start": "principal"}, {"ranking": "words"},
    ],
    TrainingConfig: [
        {"steps": -1}, {"batch_size": 1}, {"learning_rate": 0}, {"warmup": 2}, {"seed": -1}, {"patience": 0},
    ],
}  # fmt: skip
"""Values out of range: the message names the option."""

REFUSED: list[tuple[type[Config], dict[str, Any], str]] = [
    *((config, options, next(iter(options))) for config, listed in NAMED.items() for options in listed),
    (FieldsConfig, {"temperature": 0.0}, "temperature must be above 0"),
    (FieldsConfig, {"aggregate_weight": 0.0, "fields_weight": 0.0, "best_weight": 0.0}, "are all 0; raise one"),
    (FieldsConfig, {"fields": "text", "budgets": ("text",)}, "field=tokens"),
    (FieldsConfig, {"fields": "text", "budgets": ("colour=3",)}, "budgets name 'colour'"),
    (FieldsConfig, {"chunk": -1}, "chunk must be"),
    (FieldsConfig, {"stored": "float16"}, "stored must be 'int8' or 'float32', got 'float16'"),
    (FieldsConfig, {"negatives": "mined"}, "no option 'negatives'"),
    (FieldsConfig, {"fields": {"text"}}, "give a list, not a set"),
    (FieldsConfig, {"fields": {"a=b": "title"}}, "'a=b' cannot be a name"),
    (FieldsConfig, {"fields": {1: "title"}}, "1 cannot be a name"),
    (FieldsConfig, {"fields": [1, "title"]}, "names must be str, got 1"),
    (FieldsConfig, {"fields": {"a": None}}, "'a' is given None"),
    (PathsConfig, {"branches": 1}, "branches must be"),
    (PathsConfig, {"branches": 2000, "height": 3}, "8,000,000,000 leaves"),
    (PathsConfig, {"branches": 2, "per_document": 3}, "at least per_document=3"),
    (PathsConfig, {"margin": 0.0}, "margin must be above 0"),
    (PathsSearch, {"visit": 0.0}, "visit must be a share"),
    (PathsSearch, {"visit": 1.5}, "visit must be a share"),
    (PathsSearch, {"visit": 0}, "visit must be a share"),
    (PathsSearch, {"beam": 0}, "beam must be at least 1"),
    (TaxonomyConfig, {"queries": "lookup"}, "goes with documents='lookup'"),
    (TaxonomyConfig, {"documents": "lookup", "heads": "shared"}, "heads='shared' needs"),
    (TaxonomyConfig, {"multiplier": 0.0}, "multiplier must be above 0"),
    (TaxonomyConfig, {"correction": 3.0}, "correction must be at most 2"),
    (TaxonomyConfig, {"max_distance": -1}, "max_distance must be"),
    (TaxonomyConfig, {"rarity": 0.05}, "no option 'rarity'"),
    (TaxonomyConfig, {"hard_share": 1.5}, "hard_share must be at most 1"),
]


@pytest.mark.parametrize(("config", "options", "words"), REFUSED, ids=str)
def test_options_that_do_not_fit_are_refused(config: type[Config], options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config(**options)


FORMER: list[tuple[dict[str, Any], Config]] = [
    ({**TreeConfig(depth=4).to_dict(), **TreeConfig.retired, "closed": []}, TreeConfig(depth=4)),
    (
        {"fields": ["a", "b"], "sees": [], "words": 0, "negatives": "given", "pretrain_steps": 0}
        | {"diversity_weight": 0.0},
        FieldsConfig(fields=("a", "b")),
    ),
    (
        {"from_encoder": True, "states": 8, "vector": 8, "last": 3, "schedule": "together", "negatives": 0},
        LayersConfig(from_encoder=True, states=8, vector=8, last=3),
    ),
    (
        {"branches": 4, "centroid_weight": 0.3, "sharpness": 40.0, "balance": 0.0}
        | {"intra_leaf_form": "triplet", "indexer_rate": 1.0, "encoder_rate": 0.1},
        PathsConfig(branches=4, centroid_weight=0.3),
    ),
    (
        TaxonomyConfig(dimension=8).to_dict() | {"rarity": 0.05, "frequencies": "known", "hidden": 0},
        TaxonomyConfig(dimension=8),
    ),
]
GONE = {
    TreeConfig: {"closed": [3, 4], "heads": 2, "hidden": 8, "adapted": True},
    FieldsConfig: {"sees": ["b=a"], "words": 7, "targets": "words"},
    LayersConfig: {"schedule": "one by one"},
    PathsConfig: {"balance": 0.5},
    TaxonomyConfig: {"hidden": 8},
}
"""Former options at values that no longer work."""


@pytest.mark.parametrize(("stored", "config"), FORMER, ids=lambda value: type(value).__name__)
def test_options_of_earlier_versions(stored: dict[str, Any], config: Config) -> None:
    assert type(config).from_dict(stored) == config
    for name, value in GONE[type(config)].items():
        with pytest.raises(ConfigError, match=f"{name}=.* is no longer supported.*train the model again"):
            type(config).from_dict({**stored, name: value})
    with pytest.raises(ConfigError, match="knows no 'space': read it with the version .* or train the model again"):
        type(config).from_dict({**stored, "space": "encoder"})


def test_values_that_are_gone_are_refused_as_any_other() -> None:
    with pytest.raises(ConfigError, match="encoder_learns must be 'nothing' or 'all', got 'last'"):
        PathsConfig.from_dict({"encoder_learns": "last"})
    with pytest.raises(ConfigError, match="pooling must be 'both' or 'cls', got 'mean'"):
        LayersConfig.from_dict({**FORMER[2][0], "pooling": "mean"})


@pytest.mark.parametrize(
    ("method", "own", "loop"),
    [
        (
            "fields",
            {"whole": False, "pooling": "token", "similarity": "inner_product", "temperature": 0.1},
            {"batch_size": 1024, "learning_rate": 5e-6, "decay": "linear"},
        ),
        ("layers", {"start": "random", "skip": "outside"}, {"batch_size": 256}),
        ("paths", {"start": "random", "negatives": "leaves", "semantic": 0.2}, {"batch_size": 64}),
    ],
)
def test_the_papers_recipes(method: str, own: dict[str, Any], loop: dict[str, Any]) -> None:
    model = model_class(method)
    config, training = fit_configs(model.config_class, model.training_defaults, None, "paper", None, {"steps": 7})
    assert {name: getattr(config, name) for name in own} == own
    assert {name: getattr(training, name) for name in loop} == loop
    assert training.steps == 7
