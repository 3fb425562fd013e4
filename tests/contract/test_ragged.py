"""Ragged arrays: any number of rows per document, stored, read, copied and filtered like the others, by any method."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palmette import Document, Index, Model
from palmette.arrays import Ragged
from palmette.errors import InputError
from palmette.search.plan import ArraySpec
from support.stores import ragged_of
from support.tiny import documents

SPEC = ArraySpec("letters", (2,), "int32", ragged=True)


def letters_of(document: Document) -> np.ndarray:
    """Letter and place of every vowel; a document without a text has none."""
    vowels = [(ord(letter), place) for place, letter in enumerate(document.text) if letter in "aeiou"]
    return np.array(vowels, np.int32).reshape(-1, 2)


def test_rows_follow_their_documents(space: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a method that also stores a ragged array."""
    own, encode, explain = space.arrays(), space.encode_documents, space.explain

    def encode_documents(given: Sequence[Document], *vectors: Any) -> dict[str, Any]:
        return {**encode(given, *vectors), SPEC.name: ragged_of(*map(letters_of, given))}

    def explain_without(query: Any, arrays: Any, *how: Any) -> Any:
        assert np.array_equal(arrays[SPEC.name].row(0), letters_of(how[1]["document"]))
        return explain(query, {name: array for name, array in arrays.items() if name != SPEC.name}, *how)

    def check(index: Index, expected: Sequence[Document]) -> None:
        """Each document has its own rows, whatever the order of the keys."""
        with index.backend.read() as view:
            keys = view.keys()
            assert view.ids(keys.tolist()) == [one.key for one in expected]
            for order in (keys, keys[::-1], np.random.default_rng(7).permutation(keys), keys[[0, 2, 0, 1, 2]]):
                found, given = view.ragged(SPEC.name, order), view.documents(order.tolist())
                for row, document in enumerate(given):
                    assert np.array_equal(found.row(row), letters_of(document))

    given = [*documents()[:20], Document(id="fields", fields={"title": "red fox"})]
    monkeypatch.setattr(space, "explain", explain_without)
    monkeypatch.setattr(space, "arrays", lambda: (*own, SPEC))
    monkeypatch.setattr(space, "encode_documents", encode_documents)
    with Index.create(tmp_path / "new", space, sentences=False) as index:
        for start in (0, 8, 14):
            index.add(given[start : start + 8])
        changed = Document(id=given[3].key, text="a whole other text", metadata={"colour": "red"})
        index.upsert([changed], delete=[given[5].key])
        kept = [*(one for one in given if one.key not in (given[3].key, given[5].key)), changed]
        red = [one for one in kept if one.metadata.get("colour") == "red"]
        for step in (lambda: None, index.compact):
            step()
            check(index, kept)
            check(index.filtered({"colour": "red"}), red)
        assert index.search("whole other text", k=1, lexical=1)[0].explain().parts
        for source, expected in ((index, kept), (index.filtered({"colour": "red"}), red)):
            with source.copy_to(tmp_path / f"copy{len(expected)}") as copy:
                check(copy, expected)
    with Index.open(tmp_path / "new", space) as index:
        check(index, kept)


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
    with pytest.raises(InputError, match="rise from 0 to the number of rows, 3"):
        Ragged(np.zeros((3, 2)), np.array(starts, float if 0.0 in starts and starts else np.int64))
