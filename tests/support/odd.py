"""Values that nobody expects: Hypothesis strategies for fuzzed calls, and what may come of such a call."""

from __future__ import annotations

import inspect
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from palmette.errors import PalmetteError

LIMITS = settings(deadline=None, suppress_health_check=list(HealthCheck))
NAMES = ["a", "b", "lang", "__proto__", "$id", "$where", "", "a.b", "\x00", "\ud800", "<long>", "naïve", "0"]
IDS = ["a", "b", "c", "__proto__", "\x00", "\udc00", "<long>"]


class Hostile:
    """Raises whatever is asked of it."""

    def __repr__(self) -> str:
        raise RuntimeError("no name")

    def __str__(self) -> str:
        raise RuntimeError("no text")


SCALARS = st.one_of(
    st.sampled_from([None, True, 0, 1, -1, 2**63, 0.5, float("nan"), float("inf"), b"a", object()]),
    st.sampled_from([date(2020, 1, 1), Path("x"), 1j, frozenset("ab"), {1}, range(3), ..., int, len, print]),
    st.sampled_from([np.float32(1), np.int64(2), np.array([1.0]), np.zeros((0, 16)), np.str_("a"), np.nan]),
    st.text(max_size=8),
    st.integers(-3, 3),
    st.sampled_from(NAMES),
)


def nested(depth: int) -> Any:
    """Lists and dicts in each other."""
    value: Any = "deep"
    for _ in range(depth):
        value = {"a": [value]}
    return value


UNSHOWABLE = {
    "<long>": "x" * 9000,
    "<huge>": 10**5000,
    "<deep>": nested(20),
    "<deeper>": nested(3000),
    "<hostile>": Hostile(),
}
"""Values that Hypothesis itself could not show, by what stands for them."""


class Made(NamedTuple):
    """What a function makes of a drawn value where it is used, so that the value can be shown."""

    make: Callable[[Any], Any]
    of: Any


def real(value: Any) -> Any:
    """Put the values that cannot be shown, and those that are made, in their places."""
    if isinstance(value, Made):
        return value.make(real(value.of))
    if isinstance(value, dict):
        return {"x" * 9000 if key == "<long>" else key: real(inner) for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(real, value))
    return UNSHOWABLE.get(value, value) if isinstance(value, str) else value


VALUES = st.recursive(
    SCALARS | st.sampled_from(list(UNSHOWABLE)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=4,
)
OPERATORS = "$eq $ne $gt $gte $lt $lte $in $nin $any $all $exists $contains $icontains $not $and $or $id $where".split()
OPERANDS = st.sampled_from([1, "en", ["en", None], True, None, [], {}]) | VALUES
KEYS = st.sampled_from(["lang", "n", *NAMES])
CONDITIONS = st.dictionaries(KEYS, OPERANDS, max_size=2) | st.dictionaries(
    KEYS, st.dictionaries(st.sampled_from(OPERATORS), OPERANDS, max_size=2), max_size=2
)
LOGIC = st.sampled_from(["$and", "$or", "$not"])
FILTERS = st.recursive(
    CONDITIONS | VALUES, lambda inner: st.dictionaries(LOGIC, inner | st.lists(inner, max_size=3)), max_leaves=3
)
METADATA = st.sampled_from([{"lang": "en"}, {"n": 1, "__proto__": {"a": 1}}, {"lang": ["de", "en"]}])
TEXTS = st.sampled_from(["red fox", "blue owl. It sings", "x"])
GOOD = st.fixed_dictionaries(
    {"id": st.sampled_from(IDS[:4]), "text": TEXTS},
    optional={"metadata": METADATA, "fields": st.sampled_from([{"name": "fox"}, {"name": ["a", 1, None]}])},
)
RECORD_KEYS = st.sampled_from(["id", "_id", "text", "title", "metadata", "fields", *NAMES])
ODD = st.dictionaries(RECORD_KEYS, VALUES, max_size=4)
DOCUMENTS = st.lists(st.one_of(GOOD, GOOD, GOOD, ODD, VALUES), max_size=4) | VALUES
GIVEN_IDS = st.lists(st.sampled_from(IDS), max_size=3) | VALUES
QUERIES = st.sampled_from(["red fox", "owl", ["red", "owl"], [("red", "fox")], "", [], '"red fox" 42', "<long>"])
QUERIES |= st.just(np.ones((1, 16), np.float32)) | VALUES
COUNTS = st.sampled_from([1, 3, 10**9]) | VALUES
OPTIONS = {
    "k": COUNTS,
    "filter": FILTERS,
    "threshold": st.sampled_from([0, 0.5]) | VALUES,
    "explain": st.booleans() | VALUES,
    "lexical": st.sampled_from([0, 0.4, 1, "auto"]) | VALUES,
    "sentences": st.booleans() | VALUES,
    "level": VALUES,
}
ARGUMENTS = OPTIONS | {
    "query": QUERIES,
    "queries": QUERIES,
    "documents": DOCUMENTS,
    "ids": GIVEN_IDS,
    "delete": GIVEN_IDS,
    "id": st.sampled_from(IDS) | VALUES,
    "batch_size": st.sampled_from([1, 2, 300]) | VALUES,
    "progress": st.just(False),
}
"""What is drawn for an argument of a name."""


def options(known: dict[str, st.SearchStrategy], *names: str) -> st.SearchStrategy:
    """A few of these options, or of those named: of many some would always be refused."""
    chosen = st.lists(st.sampled_from(names or sorted(known)), max_size=3, unique=True) if known else st.just([])
    return chosen.flatmap(lambda names: st.fixed_dictionaries({name: known[name] for name in names}))


def some(names: str) -> st.SearchStrategy:
    """Options of which nothing is known."""
    return options(dict.fromkeys(names.split(), VALUES))


def made(make: Callable[[Any], Any], drawn: st.SearchStrategy) -> st.SearchStrategy:
    return drawn.map(lambda value: Made(make, value))


Known = dict[str, st.SearchStrategy]


def calls(
    owner: Any, names: str, known: Known, of: Callable[..., Any] = lambda it: it, more: Known | None = None
) -> list[tuple[Any, ...]]:
    """Calls of methods by their signatures: arguments are drawn by name, any values where nothing is known of it.

    ``of`` makes the object of what a test gives first; ``more`` are the options that ``**`` takes.
    """

    def call(name: str) -> tuple[Any, ...]:
        given = list(inspect.signature(getattr(owner, name)).parameters.values())
        plain = [one for one in given if one.name != "self" and "VAR_" not in one.kind.name]
        needed = [known.get(one.name, VALUES) for one in plain if one.default is one.empty]
        free = {one.name: known.get(one.name, VALUES) for one in plain if one.default is not one.empty}
        free |= more or {} if given[-1].kind is inspect.Parameter.VAR_KEYWORD else {}

        def use(*drawn: Any) -> None:
            *first, values, how = drawn
            found = getattr(of(*first), name)(*values, **how)
            if isinstance(found, Iterator):
                list(found)

        use.__qualname__ = use.__name__ = name
        return use, st.tuples(*needed), options(free)

    return [call(name) for name in names.split()]


PER_EXAMPLE = 10
"""Calls of an example."""


def many(run: Callable[[list[tuple[Any, ...]]], None], uses: Sequence[tuple[Any, ...]], examples: int) -> None:
    """Run examples of ten calls each: functions, and the values that their strategies draw."""
    drawn = st.one_of([st.tuples(st.just(use), *given) for use, *given in uses])
    lists = st.lists(drawn, min_size=PER_EXAMPLE, max_size=PER_EXAMPLE)
    phases = (Phase.explicit, Phase.reuse, Phase.generate)  # a failing list is short enough to read
    settings(LIMITS, max_examples=examples, phases=phases)(given(lists)(lambda made: run(made)))()


OURS = ("/plugin/palmette/", "/adapters/langchain_palmette/", "/adapters/llama_index/")


def attempt(use: Callable[..., Any], *given: Any, also: type[Exception] = PalmetteError) -> None:
    """Call; what escapes that is no PalmetteError (nor ``also``) is raised if our code had a part in it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            use(*map(real, given))
    except (PalmetteError, also) as error:
        str(error)
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        if any(part in frame.filename for frame in frames for part in OURS):
            raise
