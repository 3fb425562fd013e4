"""Words in a local index: the same answers however the documents came to lie in segments."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from palmette import FakeEncoder, Index, SpaceModel
from palmette.lexical import bm25
from palmette.lexical.analyser import analyser_of
from palmette.store.filters import Scoped, parse_filter
from palmette.store.local.backend import LocalBackend
from palmette.types import Document
from support.stores import SPECS, delete, doc, put, state_of

QUERIES = ["owl", "red owl by night", "fox fox", "nothing of this", "a", 'a "red owl"']


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
                for k in (1, 7, 1000):
                    found, expected = view.words(query, k), ranked[:k]
                    assert found.keys.tolist() == keys[expected].tolist()
                    assert found.scores.tolist() == scores[expected].tolist()


@pytest.mark.parametrize("residue", [[0], [0, 3, 5], list(range(1, 40)), list(range(40))])
def test_behind_a_wall_its_own_documents_are_counted(residue: list[int]) -> None:
    """To the bit as in an index of these documents alone, whether they are few or many among all."""
    scope = Scoped((parse_filter({"n": residue[0]} if len(residue) == 1 else {"n": {"$in": residue}}),))
    inner = parse_filter({"even": True})
    with LocalBackend.in_memory(SPECS) as backend, LocalBackend.in_memory(SPECS) as alone:
        for start in (0, 400, 600, 650):
            documents = [doc(d.key, d.text, n=n % 40, even=n % 2 == 0) for n, d in enumerate(some(300, start), start)]
            put(backend, *documents)
            put(alone, *(one for one in documents if one.metadata["n"] in residue))
        for one in (backend, alone):
            delete(one, *(f"d{n}" for n in range(0, 900, 6)))
        for within, plain in ((scope, None), (Scoped((scope, inner)), inner)):
            with backend.read(within) as view, alone.read(plain) as expected:
                for query in (*QUERIES, " ".join(f"word{n} owl{n % 7} fox" for n in range(200))):
                    keys, same = view.keys(), expected.keys()
                    assert view.ids(keys.tolist()) == expected.ids(same.tolist())
                    for k in (1, 9, 1000):
                        found, wanted = view.words(query, k), expected.words(query, k)
                        assert view.ids(found.keys.tolist()) == expected.ids(wanted.keys.tolist())
                        assert found.scores.tolist() == wanted.scores.tolist()
                        assert (found.document_frequencies, found.documents) == (
                            wanted.document_frequencies,
                            wanted.documents,
                        )
                        assert found.rarity == wanted.rarity
                    scores = view.words(query, 0, only=keys).scores
                    assert scores.tolist() == expected.words(query, 0, only=same).scores.tolist()
                    parts = [view.word_parts(query, int(key)) for key in keys[:5]]
                    assert np.array_equal(parts, [expected.word_parts(query, int(key)) for key in same[:5]])
                    sums = [float(np.add.accumulate(part, dtype=np.float32)[-1]) for part in parts]
                    assert found.phrases or sums == scores[:5].tolist(), "added in the order of the words"


def test_many_words_are_scored_as_few_are(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = None
    for reads_all_postings in (False, True):
        if reads_all_postings:
            monkeypatch.setattr(bm25, "_MOST_TERMS_FOR_MAXSCORE", 0)
        with LocalBackend.in_memory(SPECS) as backend:
            for start in (0, 60, 63, 64, 90):
                put(backend, *(doc(d.key, d.text, n=n % 10) for n, d in enumerate(some(50, start))))
            delete(backend, *(f"d{n}" for n in range(0, 140, 6)))
            expected = expected or answers(backend)
            assert answers(backend) == expected
        for filter in ({"n": {"$lt": 9}}, {"n": 3}):
            test_the_best_are_those_of_all_documents(filter)


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


def test_phrases_are_found_under_filters() -> None:
    with LocalBackend.in_memory(SPECS) as backend:
        put(backend, *(doc(f"d{n}", ("a red owl", "an owl in red", "red")[n % 3], n=n) for n in range(12)))
        put(backend, doc("last", "Red Owls", n=12))
        delete(backend, "d0")
        for filter, expected in ((None, ["d3", "d6", "d9", "last"]), ({"n": {"$gt": 8}}, ["d9", "last"])):
            with backend.read(filter) as view:
                found = view.words('owls "red owl"', 99)
                assert found.phrases
                assert view.ids(found.keys.tolist()) == expected
                scores = view.words('owls "red owl"', 0, only=view.keys()).scores
                assert set(view.keys()[scores > 0].tolist()) == set(found.keys.tolist())
                assert not view.words('where is a "red owl"?', 99).phrases, "a name in a sentence"
                assert view.words('"nothing of this"', 9).keys.tolist() == []
        put(backend, doc("whole", "red owl sings"), doc("half", "owl sings loudly"))
        with backend.read() as view:
            assert view.ids(view.words('"red owl sings"', 9).keys.tolist()) == ["whole"]


def test_words_of_another_stemmer_are_stemmed_anew_by_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(index: Index, text: str) -> list[str]:
        with index.backend.read() as view:
            return view.ids(view.words(text, 9).keys.tolist())

    import Stemmer

    with monkeypatch.context() as former:
        former.setattr(Stemmer, "Stemmer", lambda language, size: SimpleNamespace(stemWord=str))  # stems nothing
        former.setattr(Stemmer, "version", lambda: "0.1")
        analyser_of.cache_clear()
        model = SpaceModel.untrained(FakeEncoder(16))
        with Index.create(tmp_path / "i", model) as index:
            index.add([Document("a", "pruning trees"), Document("b", "a loaf"), Document("c", "apple trees")])
    analyser_of.cache_clear()
    with pytest.warns(UserWarning, match=r"stemmed by version '0\.1'.*index\.copy_to"):
        index = Index.open(tmp_path / "i")
    with index, index.copy_to(tmp_path / "copy") as copy:
        assert (found(index, "prune a tree"), found(copy, "prune a tree")) == ([], ["a", "c"])
    Index.open(tmp_path / "copy").close()  # without a warning
