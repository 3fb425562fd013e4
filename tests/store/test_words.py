"""Words in a local index: the same answers however the documents came to lie in segments."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palmette.errors import CorruptIndexError, FormatError
from palmette.store.folder import MANIFEST
from palmette.store.local import LocalBackend
from palmette.types import Document
from support.stores import SPECS, arrays_of, delete, doc, put, state_of

QUERIES = ["owl", "red owl by night", "fox fox", "nothing of this", "a"]


def some(count: int, start: int = 0) -> list[Document]:
    words = "red green owl fox night day tree a by the".split()
    draw = np.random.default_rng(start)
    return [doc(f"d{start + i}", " ".join(draw.choice(words, 1 + i % 9))) for i in range(count)]


def answers(backend: LocalBackend) -> list[list[tuple[str, float]]]:
    with backend.read() as view:
        found = view.matching(QUERIES, 1000)
        return [
            sorted((view.ids([key])[0], score) for key, score in zip(keys, scores, strict=True) if key >= 0)
            for keys, scores in zip(found.keys.tolist(), found.scores.tolist(), strict=True)
        ]


def test_segments_deletions_and_compaction_do_not_change_answers() -> None:
    with LocalBackend.in_memory(SPECS) as pieces, LocalBackend.in_memory(SPECS) as whole:
        for start in (0, 40, 43, 44, 60):
            put(pieces, *some(17, start))
        gone = [f"d{n}" for n in range(0, 80, 3)]
        delete(pieces, *gone)
        put(whole, *(d for d in state_documents(pieces)))
        assert pieces.stats().segments > 1
        expected = answers(whole)
        assert answers(pieces) == expected
        pieces.compact()
        assert answers(pieces) == expected
        state_of(pieces)


def state_documents(backend: LocalBackend) -> list[Document]:
    return [document for document, _ in state_of(backend).values()]


def test_scores_do_not_depend_on_filters_and_parts_add_up() -> None:
    with LocalBackend.in_memory(SPECS) as backend:
        put(backend, *(doc(f"d{n}", f"owl {'red ' * (n % 4)} fox", n=n) for n in range(20)))
        with backend.read() as everything, backend.read({"n": {"$lt": 7}}) as few:
            every, narrow = everything.matching(["red owl"], 99), few.matching(["red owl"], 99)
            scores = dict(zip(every.keys[0].tolist(), every.scores[0].tolist(), strict=True))
            assert len(narrow.keys[0]) == 7
            assert narrow.scores[0].tolist() == [scores[key] for key in narrow.keys[0].tolist()]
            shared = few.shared("red owl", narrow.keys[0].tolist())
            assert shared.words == ["red", "owl"]
            assert shared.scores.tolist() == narrow.scores[0].tolist()
            inner = few.within(narrow.keys[0][narrow.keys[0] < 5])
            assert set(inner.matching(["owl"], 99).keys[0].tolist()) == set(inner.keys().tolist())


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
                scores = view.shared(query, keys.tolist()).scores
                ranked = np.lexsort((keys, -scores))
                ranked = ranked[scores[ranked] > 0]
                for k, floor in ((1, 0.0), (7, 0.0), (1000, 0.0), (1000, 0.4), (3, 0.4), (5, 1.5)):
                    found, expected = view.matching([query], k, floor), ranked[scores[ranked] >= floor][:k]
                    held = found.keys[0] >= 0
                    assert found.keys[0][held].tolist() == keys[expected].tolist()
                    assert found.scores[0][held].tolist() == scores[expected].tolist()


def test_a_view_keeps_its_words_while_others_write() -> None:
    with LocalBackend.in_memory(SPECS) as backend:
        put(backend, doc("a", "red owl"), doc("b", "fox"))
        with backend.read() as view:
            before = view.matching(["owl"], 9)
            put(backend, doc("c", "owl owl"))
            delete(backend, "a")
            backend.compact()
            assert view.matching(["owl"], 9).keys.tolist() == before.keys.tolist()
        with backend.read() as view:
            assert view.ids(view.matching(["owl"], 9).keys[0].tolist()) == ["c"]


def test_fields_are_searched_too_and_texts_without_words_do_no_harm() -> None:
    with LocalBackend.in_memory(SPECS) as backend:
        documents = [Document("f", "a toner", fields={"ean": "0095205603217"}), doc("dots", "… !?")]
        with backend.write() as writer:
            writer.put(documents, arrays_of(documents))
        with backend.read() as view:
            assert view.ids(view.matching(["0095205603217"], 5).keys[0].tolist()) == ["f"]
        backend.compact()
        delete(backend, "f")
        with backend.read() as view:
            assert view.matching(["toner"], 5).keys.max(initial=-1) == -1


def test_a_title_counts_beside_the_text_that_begins_with_it() -> None:
    titled = Document(
        "titled", "Toner. Black, for offices", fields={"title": "Toner", "ports": {"usb": None}}
    )
    plain = Document("plain", "Toner. Black, for offices and others", fields={})
    with LocalBackend.in_memory(SPECS) as backend:
        put(backend, titled, plain)
        with backend.read() as view:
            best, other = view.matching(["toner"], 2).scores[0].tolist()
            assert view.ids(view.matching(["toner"], 1).keys[0].tolist()) == ["titled"]
            assert best > 1.2 * other
            assert view.matching(["none"], 1).keys.max(initial=-1) == -1  # what has no value has no words


def test_damaged_words_and_older_formats_are_told(tmp_path: Path) -> None:
    with LocalBackend.create(tmp_path / "i", SPECS, fingerprint="m", language="german") as backend:
        put(backend, doc("a", "ein Haus"))
    with LocalBackend.open(tmp_path / "i") as backend:
        assert backend.language == "german"
    [rows] = (tmp_path / "i" / "segments").glob("*/words-rows.npy")
    content = bytearray(rows.read_bytes())
    content[-1] ^= 1
    rows.write_bytes(content)
    with pytest.raises(CorruptIndexError, match="words-rows"):
        LocalBackend.open(tmp_path / "i")
    manifest = json.loads((tmp_path / "i" / MANIFEST).read_text())
    (tmp_path / "i" / MANIFEST).write_text(json.dumps({**manifest, "format": 1}))
    with pytest.raises(FormatError, match="kept no words"):
        LocalBackend.open(tmp_path / "i")
