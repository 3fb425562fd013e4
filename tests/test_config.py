from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palmette.config import Config, check_range
from palmette.errors import ConfigError
from palmette.registry import model_class, names


@dataclass(frozen=True)
class Sample(Config):
    size: int = 3
    rate: float = 0.5
    name: str | None = None
    mode: Literal["a", "b"] = "a"
    parts: tuple[str, ...] = ()
    flag: bool = False

    def check(self) -> None:
        check_range("sample", "size", self.size, 1, 100)


@given(
    st.builds(
        Sample,
        size=st.integers(1, 100),
        rate=st.floats(allow_nan=False, allow_infinity=False),
        name=st.none() | st.text(),
        mode=st.sampled_from(["a", "b"]),
        parts=st.lists(st.text()).map(tuple),
        flag=st.booleans(),
    )
)
def test_json_round_trip(config: Sample) -> None:
    import json

    assert Sample.from_dict(json.loads(config.to_json())) == config


def test_a_range_is_of_numbers() -> None:
    with pytest.raises(ConfigError, match="sample: size must be a number, got str '3'"):
        check_range("sample", "size", "3", 1, 100)  # type: ignore[arg-type]
    check_range("sample", "size", np.float32(3), 1, 100)
    check_range("sample", "size", None, 1, 100)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sise": 3}, ["'sise'", "Did you mean 'size'", "rate"]),
        ({"size": 2.5}, ["size", "int", "2.5"]),
        ({"size": True}, ["size", "True"]),
        ({"mode": "c"}, ["mode", "'c'", "'a'", "'b'"]),
        ({"parts": ("x", 1)}, ["parts"]),
        ({"size": 0}, ["size", "between 1 and 100", "0"]),
        ({"flag": 1}, ["flag", "bool"]),
    ],
)
def test_bad_options_name_value_and_fix(options: dict, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        Sample.of(**options)
    for word in words:
        assert word in str(caught.value)


def test_int_is_a_float_and_lists_become_tuples() -> None:
    config = Sample.from_dict({"rate": 1, "parts": ["x", "y"]})
    assert config.rate == 1
    assert config.parts == ("x", "y")


def test_numbers_of_numpy_are_numbers() -> None:
    made = Sample(size=np.int64(4), rate=np.float32(0.5), flag=np.bool_(True), parts=np.array(["a", "b"]))
    assert made == Sample(size=4, rate=0.5, flag=True, parts=("a", "b"))
    assert [type(value) for value in (made.size, made.rate, made.flag)] == [int, float, bool]
    with pytest.raises(ConfigError, match="size must be int, got np.float64"):
        Sample(size=np.float64(4))
    with pytest.raises(
        ConfigError, match=r"parts must be str in a list, such as \['a', 'b'\], got range\(0, 2\)"
    ):
        Sample(parts=range(2))


def test_replace_checks_again() -> None:
    assert Sample().replace(size=7).size == 7
    with pytest.raises(ConfigError):
        Sample().replace(size=0)
    with pytest.raises(ConfigError, match="no option 'nope'"):
        Sample().replace(nope=1)


def test_missing_key_is_named() -> None:
    @dataclass(frozen=True)
    class Needy(Config):
        must: int

    with pytest.raises(ConfigError, match="'must' is missing"):
        Needy.from_dict({})


@pytest.mark.parametrize("method", names())
def test_every_option_of_a_method_says_what_it_does(method: str) -> None:
    cls = model_class(method)
    for config in (cls.config_class, cls.training_class, cls.search_class):
        assert sorted(config.help()) == sorted(config.names()), f"{config.__name__}: an Attributes line each"
    for name in (*cls.config_class.choices(), *cls.training_class.choices()):
        assert f"\n    {name} (default " in (cls.fit.__doc__ or ""), name
