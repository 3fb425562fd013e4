"""Words in a local index: the same answers however the documents came to lie in segments."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palmette.store.local import LocalBackend
from palmette.types import Document
from support.stores import SPECS, delete, doc, put, state_of

QUERIES = ["owl", "red owl by night", "fox fox", "nothing of this", "a"]


def some(count: int, start: int = 0) -> list[Document]:
    words = "red green owl fox night day tree a by the".split()
    draw = np.random.default_rng(start)
    return [doc(f"d{start + i}", " ".join(draw.choice(words, 1 + i % 9))) for i in range(count)]


def answers(backend: LocalBackend) -> list[list[tuple[str, float]]]:
    with backend.read() as view:
        found = [view.words(query, 1000) for query in QUERIES]
        return [sorted(zip(view.ids(one.keys.tolist()), one.scores.tolist(), strict=True)) for one in found]


def test_segments_deletions_and_compaction_do_not_change_answers() -> None:
    with LocalBackend.in_memory(SPECS) as pieces, LocalBackend.in_memory(SPECS) as whole:
        for start in (0, 40, 43, 44, 60):
            put(pieces, *some(17, start))
        gone = [f"d{n}" for n in range(0, 80, 3)]
        delete(pieces, *gone)
        put(whole, *(document for document, _ in state_of(pieces).values()))
        assert pieces.stats().segments > 1
        expected = answers(whole)
        assert answers(pieces) == expected
        pieces.compact()
        assert answers(pieces) == expected


def test_scores_do_not_depend_on_filters_and_parts_add_up() -> None:
    with LocalBackend.in_memory(SPECS) as backend:
        put(backend, *(doc(f"d{n}", f"owl {'red ' * (n % 4)} fox", n=n) for n in range(20)))
        with backend.read() as everything, backend.read({"n": {"$lt": 7}}) as few:
            every, narrow = everything.words("red owl", 99), few.words("red owl", 99)
            scores = dict(zip(every.keys.tolist(), every.scores.tolist(), strict=True))
            assert len(narrow.keys) == 7
            assert narrow.scores.tolist() == [scores[key] for key in narrow.keys.tolist()]
            assert narrow.words == ["red", "owl"]
            assert few.words("red owl", 0, only=narrow.keys).parts.tolist() == narrow.parts.tolist()


@pytest.mark.parametrize("filter", [None, {"n": {"$lt": 9}}, {"n": 3}])
def test_the_best_are_those_of_all_documents(filter: Any) -> None:
    """Ties included: texts are short and repeat themselves; five segments, some documents deleted."""
    with LocalBackend.in_memory(SPECS) as backend:
        for start in (0, 60, 63, 64, 90):
            put(backend, *(doc(d.key, d.text, n=n % 10) for n, d in enumerate(some(50, start))))
        delete(backend, *(f"d{n}" for n in range(0, 140, 6)))
        with backend.read(filter) as view:
            keys = view.keys()
            for query in QUERIES:
                scores = view.words(query, 0, only=keys).scores
                ranked = np.lexsort((keys, -scores))
                ranked = ranked[scores[ranked] > 0]
                for k, floor in ((1, 0.0), (7, 0.0), (1000, 0.0), (1000, 0.4), (3, 0.4), (5, 1.5)):
                    found, expected = view.words(query, k, floor), ranked[scores[ranked] >= floor][:k]
                    assert found.keys.tolist() == keys[expected].tolist()
                    assert found.scores.tolist() == scores[expected].tolist()


def test_fields_are_searched_too_and_texts_without_words_do_no_harm() -> None:
    with LocalBackend.in_memory(SPECS) as backend:
        put(backend, Document("f", "a toner", fields={"ean": "0095205603217"}), doc("dots", "… !?"))
        with backend.read() as view:
            assert view.ids(view.words("0095205603217", 5).keys.tolist()) == ["f"]
        backend.compact()
        delete(backend, "f")
        with backend.read() as view:
            assert not len(view.words("toner", 5).keys)


def test_a_title_counts_beside_the_text_that_begins_with_it() -> None:
    fields = {"title": "Toner", "ports": {"usb": None}}
    titled = Document("titled", "Toner. Black, for offices", fields=fields)
    plain = doc("plain", "Toner. Black, for offices and others")
    with LocalBackend.in_memory(SPECS) as backend:
        put(backend, titled, plain)
        with backend.read() as view:
            best, other = view.words("toner", 2).scores.tolist()
            assert view.ids(view.words("toner", 1).keys.tolist()) == ["titled"]
            assert best > 1.2 * other
            assert not len(view.words("none", 1).keys)  # what has no value has no words


def test_an_index_keeps_its_language(tmp_path: Path) -> None:
    with LocalBackend.create(tmp_path / "i", SPECS, fingerprint="m", language="german") as backend:
        put(backend, doc("a", "ein Haus"))
    with LocalBackend.open(tmp_path / "i") as backend, backend.read() as view:
        assert backend.language == "german"
        assert view.words("Häuser", 1).keys.tolist() == [1]
