"""What is recorded: one file per fixture, one block per set of search options, one case per line.

Documents are their places in the fixture's list (−1: one that was added), scores hexadecimal floats.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from palmette import Index, Model
from palmette.errors import PalmetteError
from regression import api

RECORDS = Path(__file__).parent / "records"
KINDS = ("dog", "cat", "owl", "bee")
PLACES = ("red owl", "green cat", "blue hen", "white ant", "golden bee")
ZOO = [*(f"{kind} {i} of the zoo" for kind in KINDS for i in (1, 4, 7)), "animal", "a dog", "owl or bee", "number 3"]
QUERIES = [
    *(f"where does the {what} live?" for what in PLACES),
    *("black fox", "owl", "house 17", "a golden animal sings", "who sings at night in house 3?", "cow white"),
    *("lives", "red red red cat", "the dog of house 41", "something else entirely", "green bees, blue foxes"),
]
Result = Any
"""[[names], [numbers]] for each query, or the name of an error: {"error": "ConfigError"}."""


def queries(name: str) -> list[str]:
    return ZOO if name == "zoo" else QUERIES


@cache
def model(name: str) -> Model:
    return api.open_model(name)


@cache
def index(name: str, segments: int = 1, changed: bool = False) -> Index:
    """An index in memory of the fixture's documents."""
    made = api.new_index(model(name), api.documents(name), segments)
    if changed:
        api.change(made, api.documents(name))
    return made


def number(value: float) -> str:
    """Exact, without the zeros at the end."""
    return re.sub(r"\.?0+p", "p", float(value).hex())


def rows(found: list[list[tuple[Any, float]]]) -> Result:
    return [[[name for name, _ in row], [number(value) for _, value in row]] for row in found]


def rankings(name: str, found: list[list[tuple[str, float]]]) -> Result:
    places = {document.key: place for place, document in enumerate(api.documents(name))} | {"added": -1}
    return rows([[(places[id], score) for id, score in hits] for hits in found])


def searches(name: str, where: Index, **how: Any) -> Result:
    """Rankings of 1, 5 and all documents."""
    asked = queries(name)
    chosen = ((asked[:4], 1), (asked, 5), (asked[4:6], 1000))
    return [hits for some, k in chosen for hits in rankings(name, api.search(where, some, k, **how))]


def attempt(case: Callable[[], Result]) -> Result:
    try:
        return case()
    except PalmetteError as error:
        return {"error": type(error).__name__}


def cases(name: str, options: dict[str, Any]) -> dict[str, Result]:
    """The results of a block's options."""
    return {
        f"lexical={lexical}{case}": attempt(result)
        for lexical in (0, 0.5, "auto")
        for case, result in weighted(name, {**options, "lexical": lexical}).items()
    }


def weighted(name: str, how: dict[str, Any]) -> dict[str, Callable[[], Result]]:
    asked, some = queries(name), api.documents(name)[:12]
    condition: Any = {"number": {"$lt": 5}} if name == "zoo" else {"house": {"$lt": 24}, "animal": {"$ne": "owl"}}
    few: dict[str, Callable[[], Result]] = {
        "": lambda: searches(name, index(name), **how),
        ", three segments": lambda: searches(name, index(name, 3), **how),
        ", parts": lambda: rows([api.parts(index(name), query, **how) for query in asked[:2]]),
    }
    if how["lexical"] == 0.5:
        return few
    return few | {
        ", filter": lambda: searches(name, index(name), filter=condition, **how),
        ", changed": lambda: searches(name, index(name, 1, True), **how),
        ", three segments, changed": lambda: searches(name, index(name, 3, True), **how),
        ", score": lambda: rows([list(enumerate(model(name).score(asked[0], some, **how)))]),
    }


def same_as(case: str) -> str:
    """The case whose result this has, unless its own is recorded."""
    return case.replace(", three segments", "")


def has_index(name: str) -> bool:
    return (api.FIXTURES / name / "index" / "manifest.json").exists()


def opened(name: str, folder: Path, options: dict[str, Any]) -> Result:
    """Searches of the fixture's own index."""
    with api.open_index(name, folder) as found:
        weights = [{**options, "lexical": lexical} for lexical in (0, "auto")]
        return attempt(lambda: [hits for how in weights for hits in searches(name, found, **how)])


def others(folder: Path) -> dict[str, Result]:
    """Both readers' answers, and both frameworks' retrievers of the tree."""
    passages, asked = [document.content for document in api.documents("tree")[::3]], queries("tree")
    found = {name: rows([api.answers(name, asked, passages)]) for name in ("reader-sentence", "reader-span")}
    with api.open_index("tree", folder / "llama") as held:
        found["llama_index"] = rankings("tree", api.llama_index(held, asked))
    api.open_index("tree", folder / "lang").close()
    return found | {"langchain": rankings("tree", api.langchain(folder / "lang", asked))}


def load(name: str) -> dict[str, Any]:
    """Blocks by name: ``options`` and ``cases``."""
    return dict(json.loads((RECORDS / f"{name}.json").read_text("utf-8")))


def save(name: str, blocks: dict[str, Any]) -> None:
    """One line for each case."""

    def line(key: str, value: Any) -> str:
        return f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}"

    parts = []
    for title, block in blocks.items():
        found = ",\n  ".join(line(*case) for case in block["cases"].items())
        options = line("options", block["options"])
        parts.append(f'{json.dumps(title)}: {{\n {options},\n "cases": {{\n  {found}\n }}\n}}')
    (RECORDS / f"{name}.json").write_text("{" + ",\n".join(parts) + "}\n", "utf-8")
