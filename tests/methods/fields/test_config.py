"""Options, the table of attention, options of earlier versions, and the paper's recipe."""

from typing import Any

import pytest

from palmette import FieldsModel
from palmette.errors import ConfigError
from palmette.methods.fields import FieldsConfig, FieldsSearch
from palmette.methods.fields.config import parse_mapping
from palmette.training.config import fit_configs


def test_mappings_lists_and_text_say_the_same() -> None:
    mapping = {"title": "title", "brand": "metadata.brand"}
    for given in (mapping, "title, brand=metadata.brand", ["title", "brand=metadata.brand"]):
        assert FieldsConfig(fields=given).fields == ("title", "brand=metadata.brand")
    assert parse_mapping({"text": ["title", "brand"]}) == ("text=title+brand",)
    assert parse_mapping(None) == ()
    assert FieldsConfig(budgets={"text": 9}).budgets == ("text=9",)
    assert FieldsSearch(weights={"title": 2}, fields="title,text").factors == {"title": 2.0}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"title", "text"}, "give a list, not a set"),
        ({"a=b": "title"}, "'a=b' cannot be a name"),
        ({1: "title"}, "1 cannot be a name"),
        ([1, "title"], "names must be str, got 1"),
        ({"a": None}, "'a' is given None"),
    ],
)
def test_names_that_cannot_be_are_refused(given: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        FieldsConfig(fields=given)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": 0.0}, "temperature must be above 0"),
        ({"aggregate_weight": 0.0, "fields_weight": 0.0, "best_weight": 0.0}, "are all 0; raise one"),
        ({"budgets": ("text",)}, "field=tokens"),
        ({"budgets": ("colour=3",)}, "budgets name 'colour'"),
        ({"chunk": -1}, "chunk must be"),
        ({"stored": "float16"}, "stored must be 'int8' or 'float32', got 'float16'"),
        ({"negatives": "mined"}, "no option 'negatives'"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        FieldsConfig(**{"fields": ("brand", "text"), **options})


@pytest.mark.parametrize(
    ("attention", "fields", "expected"),
    [
        ("triangular", "abc", [[1, 0, 0], [1, 1, 0], [1, 1, 1]]),
        ("diagonal", "abc", [[1, 0, 0], [0, 1, 0], [0, 0, 1]]),
        ("full", "abc", [[1, 1, 1]] * 3),
        ("triangular", ["a", "b", "all"], [[1, 0, 0], [1, 1, 0], [0, 0, 1]]),
    ],
)
def test_which_field_attends_to_which(attention: Any, fields: Any, expected: list[list[int]]) -> None:
    config = FieldsConfig(fields=tuple(fields), attention=attention)
    assert config.attended.astype(int).tolist() == expected


def test_options_of_earlier_versions() -> None:
    former = {"sees": [], "words": 0, "negatives": "given", "pretrain_steps": 0, "diversity_weight": 0.0}
    assert FieldsConfig.from_dict({"fields": ["a"], **former}) == FieldsConfig(fields=("a",))
    for name, value in (("sees", ["b=a"]), ("words", 7), ("targets", "words")):
        with pytest.raises(ConfigError, match=f"{name}=.* is no longer supported.*train the model again"):
            FieldsConfig.from_dict({"fields": ["a", "b"], name: value})


def test_the_paper_s_recipe() -> None:
    defaults = FieldsModel.training_defaults
    config, loop = fit_configs(FieldsModel.config_class, defaults, None, "paper", None, {"steps": 7})
    assert (config.whole, config.pooling, config.similarity) == (False, "token", "inner_product")
    assert config.temperature == 0.1
    assert (loop.batch_size, loop.learning_rate, loop.steps, loop.decay) == (1024, 5e-6, 7, "linear")
