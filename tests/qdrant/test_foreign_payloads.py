"""Payloads that another program or a hostile one wrote: a PalmetteError or an answer, never a foreign exception."""

from __future__ import annotations

import random
from base64 import b64encode
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

import pytest

from palmette import Index
from palmette.errors import CorruptIndexError, FormatError, NotFoundError, PalmetteError
from palmette.types import Document
from palmette_qdrant.backend import QdrantBackend
from palmette_qdrant.client import Collection
from palmette_qdrant.state import STATE
from support import tiny
from support.stores import SPECS, doc, fast_place, put

pytest.importorskip("qdrant_client")
DEEP: Any = {}
for _ in range(60):
    DEEP = {"a": [DEEP]}
VALUES = [
    None, True, 0, -1, 3, 2**31, 2**53, 1.5, 1e300, "", "text", "12345678", "[" * 99_999, "\0", "é" * 9, [], [1], ["a"],
    [[1]], [None],
    {}, {"a": 1}, DEEP, b64encode(b"x" * 7).decode(), b64encode(b"\xff" * 96).decode(), "{}", "[1]", "null",
]  # fmt: skip


def damage(client: Any, name: str, rng: random.Random) -> str:
    """Overwrite, remove or add one thing."""
    from qdrant_client import models

    points, _ = client.scroll(name, limit=99, with_payload=True)
    point = rng.choice([*points, points[0]])
    field = rng.choice(sorted(point.payload or {"a": 1}))
    kind = rng.choice(["set", "set", "set", "remove", "add"])
    value = rng.choice(VALUES)
    if kind == "set":
        client.set_payload(name, {field: value}, points=[point.id])
    elif kind == "remove":
        client.delete_payload(name, [field], points=[point.id])
    else:
        payload = {"born": rng.choice(VALUES), "id": rng.choice(VALUES), "text": "a red owl"}
        id = str(UUID(int=rng.getrandbits(128)))
        client.upsert(name, [models.PointStruct(id=id, vector={}, payload=payload)])
    return f"{kind} {field} of {point.id} to {value!r:.40}"


def use(url: str) -> None:
    """All that an index does; each call may fail in our words."""
    with Index.open(url) as index:
        calls = [
            lambda: index.search("a red owl lives", k=5),
            lambda: index.search('"red owl"', k=3, filter={"colour": "red"})[0].explain(),
            lambda: index.get(["red-owl", "blue-cat"]),
            lambda: list(index.documents()),
            index.stats,
            index.backend.verify,
            lambda: index.upsert([Document("red-owl", "another")], delete=["blue-cat"]),
            index.compact,
        ]
        for call in calls:
            try:
                call()
            except PalmetteError:
                continue


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("method", ["space", "paths"])
@pytest.mark.parametrize("seeds", [range(12), pytest.param(range(12, 150), marks=pytest.mark.exhaustive)], ids=len)
def test_no_foreign_exception(method: str, seeds: range) -> None:
    model = tiny.METHODS[method]()
    for seed in seeds:
        rng = random.Random(f"{method} {seed}")
        with TemporaryDirectory(dir=fast_place()) as folder:
            url = f"qdrant+local://{folder}/docs"
            Index.build(tiny.documents(), model, url).close()
            direct = Collection(url).client
            changes = [damage(direct, "docs", rng) for _ in range(rng.randint(1, 3))]
            direct.close()
            try:
                use(url)
            except PalmetteError:
                continue
            except Exception as error:
                error.add_note(f"seed {seed}: {changes}")
                raise


@pytest.fixture
def backend(tmp_path: Any) -> QdrantBackend:
    url = f"qdrant+local://{tmp_path}/docs"
    QdrantBackend.create(url, SPECS, fingerprint="model", language="english")
    made = QdrantBackend.open(url)
    put(made, doc("a"))
    return made


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"kind": "a blog"}, NotFoundError, "another program's collection"),
        ({"format": 99}, FormatError, "format 99, but this version reads format 3: upgrade palmette"),
        ({"format": 1}, FormatError, "index the documents anew"),
        ({"generation": "two"}, CorruptIndexError, "generation: Input should be a valid integer"),
        ({"abandoned": [1, None]}, CorruptIndexError, "abandoned.1"),
        ({"arrays": [{"name": "leaves", "shape": [1 << 40]}]}, CorruptIndexError, "array 'leaves' must hold numbers"),
        ({"folds": {"leaves": [3]}}, CorruptIndexError, "cannot be folded by 3"),
        ({"language": "klingon"}, CorruptIndexError, "klingon"),
    ],
)
def test_a_damaged_state_is_named(
    change: dict[str, Any], error: type[Exception], words: str, backend: QdrantBackend
) -> None:
    backend.db("set_payload", change, [STATE])
    with pytest.raises(error, match=words):
        backend.db.describe(backend.state())
    backend.close()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"text": 3}, "its text is a int"),
        ({"text": "forged"}, "document 'a' is not what was written"),
        ({"metadata": "[" * 99_999}, "document 'a' is not what was written"),
        ({"fields": '{"a":' * 99_999}, "document 'a' is not what was written"),
        ({"array_leaves": "AAAA"}, "point 4294967296 of .* is damaged"),
        ({"array_leaves": "[" * 99}, "point 4294967296 of .* is damaged"),
        ({"array_leaves": b64encode(b"\xff" * 32).decode()}, "its leaves holds NaN"),
        ({"words": "AAA"}, "its words are cut off"),
        ({"born": "x"}, "its born is a str"),
    ],
)
def test_a_damaged_point_is_named(change: dict[str, Any], words: str, backend: QdrantBackend) -> None:
    backend.db("set_payload", change, [1 << 32])
    with pytest.raises(CorruptIndexError, match=words), backend.read() as view:
        view.documents([1 << 32])
        view.rows("leaves", [1 << 32])
        view.words("text", 3)
    if "text" in change:
        with pytest.raises(CorruptIndexError, match=words):
            backend.verify()
    backend.close()
