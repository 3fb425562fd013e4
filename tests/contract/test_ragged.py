"""Ragged arrays: any number of rows per document, stored, read, copied and filtered like the others, by any method."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contract.test_views import PlainView
from palmette import Document, Index, Model
from palmette.arrays import Ragged
from palmette.search.plan import ArraySpec, View
from palmette.search.view import ArrayView
from support.stores import ragged_of
from support.tiny import documents

SPEC = ArraySpec("letters", (2,), "int32", ragged=True)


def letters_of(document: Document) -> np.ndarray:
    """Letter and place of every vowel; a document without a text has none."""
    vowels = [(ord(letter), place) for place, letter in enumerate(document.text) if letter in "aeiou"]
    return np.array(vowels, np.int32).reshape(-1, 2)


@pytest.fixture
def lettered(model: Model, monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    """A method that also stores a ragged array."""
    own, encode, explain = model.arrays(), model.encode_documents, model.explain

    def encode_documents(given: Sequence[Document], *vectors: Any) -> dict[str, Any]:
        return {**encode(given, *vectors), SPEC.name: ragged_of(*map(letters_of, given))}

    def explain_without(query: Any, arrays: Any, *how: Any) -> Any:
        assert np.array_equal(arrays[SPEC.name].row(0), letters_of(how[1]["document"]))
        return explain(query, {name: array for name, array in arrays.items() if name != SPEC.name}, *how)

    with monkeypatch.context() as patch:
        patch.setattr(model, "explain", explain_without)
        patch.setattr(model, "arrays", lambda: (*own, SPEC))
        patch.setattr(model, "encode_documents", encode_documents)
        yield model


def check(view: View, expected: Sequence[Document]) -> None:
    """The view gives each document its own rows, whatever the order of the keys."""
    keys = view.keys()
    assert len(keys) == len(expected)
    for order in (keys, keys[::-1], np.random.default_rng(7).permutation(keys), keys[[0, 2, 0, 1, 2]]):
        found = view.ragged(SPEC.name, order)
        given = view.documents(order.tolist())
        assert len(found) == len(given)
        for row, document in enumerate(given):
            assert np.array_equal(found.row(row), letters_of(document))
    assert {document.key for document in view.documents(keys.tolist())} == {one.key for one in expected}


def test_rows_follow_their_documents(lettered: Model, tmp_path: Path) -> None:
    given = [*documents()[:20], Document(id="fields", fields={"title": "red fox"})]
    with Index.create(tmp_path / "i", lettered) as index:
        for start in range(0, len(given), 6):
            index.add(given[start : start + 6])
        changed = Document(id=given[3].key, text="a whole other text", metadata={"colour": "red"})
        index.upsert([changed], delete=[given[5].key])
        kept = [changed, *(one for one in given if one.key not in (given[3].key, given[5].key))]
        red = [one for one in kept if one.metadata.get("colour") == "red"]
        for step in (lambda: None, index.compact):
            step()
            with index.backend.read() as view:
                check(view, kept)
            with index.filtered({"colour": "red"}).backend.read() as view:
                check(view, red)
        assert index.search("whole other text", k=1, lexical=1)[0].explain().parts
        for source, expected in ((index, kept), (index.filtered({"colour": "red"}), red)):
            with source.copy_to(tmp_path / f"copy{len(expected)}") as copy, copy.backend.read() as view:
                check(view, expected)
    with Index.open(tmp_path / "i", lettered) as index, index.backend.read() as view:
        check(view, kept)


def test_arrays_in_memory_and_plain_views_have_them_too(lettered: Model) -> None:
    given = documents()[:9]
    arrays = lettered.encode_documents(given)
    check(ArrayView(arrays, given), given)
    check(PlainView(given, arrays), given)


def test_an_index_made_before_opens_and_takes_documents(
    model: Model, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with Index.create(tmp_path / "i", model, sentences=False) as index:
        index.add(documents()[:8])
    manifest = tmp_path / "i" / "manifest.json"
    old = json.loads(manifest.read_text())
    del old["digest"]
    old["arrays"] = [
        {name: value for name, value in array.items() if name in ("name", "shape", "dtype")} for array in old["arrays"]
    ]
    manifest.write_text(json.dumps({**old, "format": 2}))
    lettered = request.getfixturevalue("lettered")
    with Index.open(tmp_path / "i", lettered) as index:
        index.add(documents()[8:10])
        index.verify()
        assert len(index.search("red owl", k=99)) == 10
        with index.copy_to(tmp_path / "new") as copy, copy.backend.read() as view:
            check(view, documents()[:10])


def test_ragged_rows() -> None:
    rows = [np.arange(count * 2).reshape(count, 2) + count for count in (2, 0, 3, 1)]
    ragged = ragged_of(*rows)
    assert len(ragged) == 4
    taken = ragged.take(np.array([2, 1, 2, 0]))
    for at, row in enumerate((2, 1, 2, 0)):
        assert np.array_equal(taken.row(at), rows[row])
    assert np.array_equal(ragged.row(-1), ragged.take(np.array([-1])).row(0))
    assert np.array_equal(ragged.take(np.array([False, False, True, False])).row(0), rows[2])
    parts = [ragged, Ragged.empty(2, (2,), "int64"), taken]
    whole = Ragged.concatenate(parts)
    assert [len(part) for part in parts] == [4, 2, 4]
    assert len(whole) == 10
    assert np.array_equal(whole.row(6), rows[2])
    assert len(Ragged.empty(0, (2,), "int8").take(np.array([], np.int64))) == 0


@pytest.mark.parametrize("starts", [[0, 2], [1, 3], [0, 2, 1, 3], [], [[0, 3]], [0.0, 3.0]])
def test_starts_must_fit_the_rows(starts: list) -> None:
    from palmette.errors import InputError

    with pytest.raises(InputError, match="rise from 0 to the number of rows, 3"):
        Ragged(np.zeros((3, 2)), np.array(starts, float if 0.0 in starts and starts else np.int64))
