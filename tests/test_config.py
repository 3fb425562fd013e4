import json
from typing import Annotated, ClassVar, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

from palmette.config import FILLED_IN, Config, check_range
from palmette.errors import ConfigError
from palmette.methods import model_class, names
from palmette.training.config import TrainingConfig


class Sample(Config):
    presets: ClassVar = {"paper": {"size": 7, "steps": 5}}

    size: Annotated[int, Field(ge=1, le=100)] = 3
    """Number of things."""
    rate: float = 0.5
    name: str | None = None
    mode: Literal["a", "b"] = "a"
    parts: tuple[str, ...] = ()
    flag: bool = False
    width: Annotated[int, FILLED_IN] = 0
    """Filled in
    from the data."""

    def check(self) -> None:
        if self.mode == "b" and not self.flag:
            raise ConfigError("sample: mode='b' needs flag=True")


@settings(max_examples=30)
@given(
    st.builds(
        Sample,
        size=st.integers(1, 100),
        rate=st.floats(allow_nan=False, allow_infinity=False),
        name=st.none() | st.text(),
        parts=st.lists(st.text()).map(tuple),
        flag=st.booleans(),
    )
)
def test_json_round_trip(config: Sample) -> None:
    assert Sample.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_a_range_is_of_numbers() -> None:
    with pytest.raises(ConfigError, match="sample: size must be a number, got str '3'"):
        check_range("sample", "size", "3", 1, 100)  # type: ignore[arg-type]
    check_range("sample", "size", np.float32(3), 1, 100)
    check_range("sample", "size", None, 1, 100)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sise": 3}, ["'sise'", "Did you mean 'size'", "rate"]),
        ({"size": 2.5}, ["size must be a valid integer, got 2.5 (float)"]),
        ({"mode": "c"}, ["mode", "'c'", "'a'", "'b'"]),
        ({"size": 0}, ["size must be at least 1, got 0"]),
        ({"parts": {"x": 10**5000}}, ["parts must be", "dict whose repr raises ValueError"]),
        ({"rate": float("inf")}, ["rate must be a finite number"]),
        ({"mode": "b"}, ["needs flag=True"]),
    ],
)
def test_bad_options_name_value_and_fix(options: dict, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        Sample(**options)
    for word in words:
        assert word in str(caught.value)


def test_numbers_of_numpy_are_numbers_and_lists_become_tuples() -> None:
    made = Sample(size=np.int64(4), rate=np.float32(0.5), flag=np.bool_(True), parts=np.array(["a", "b"]))
    assert made == Sample.from_dict({"size": 4, "rate": 0.5, "flag": True, "parts": ["a", "b"]})
    assert [type(value) for value in (made.size, made.rate, made.flag, made.parts)] == [int, float, bool, tuple]
    assert Sample(rate=1).rate == 1
    with pytest.raises(ConfigError, match=r"size must be a valid integer, got np.float64\(4.0\)"):
        Sample(size=np.float64(4))
    with pytest.raises(ConfigError, match=r"parts must be a valid string, got range\(0, 2\)"):
        Sample(parts=range(2))


def test_replace_checks_again() -> None:
    assert Sample().replace(size=7).size == 7
    for wrong, told in (({"size": 0}, "size must be at least 1"), ({"nope": 1}, "no option 'nope'")):
        with pytest.raises(ConfigError, match=told):
            Sample().replace(**wrong)


def test_docstrings_are_the_help_and_what_training_fills_in_is_no_choice() -> None:
    assert Sample.help()["size"] == "Number of things."
    assert Sample.help()["width"] == "Filled in from the data."
    assert "width" in Sample.names()
    assert "width" not in Sample.choices()


@pytest.mark.parametrize("method", names())
def test_every_option_of_a_method_says_what_it_does(method: str) -> None:
    cls = model_class(method)
    for config in (cls.config_class, TrainingConfig, cls.search_class):
        assert all(config.help().values()), config.__name__
    known = {*cls.config_class.choices(), *TrainingConfig.choices()}
    assert set(cls.training_defaults) <= set(TrainingConfig.choices())
    for preset in cls.config_class.presets:
        assert set(cls.config_class.preset(preset)) <= known
