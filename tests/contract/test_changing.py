"""Adding, replacing and deleting documents, whatever the method."""

import threading

import numpy as np
import pytest

from palmette import Document, FakeEncoder, Index, Model, SpaceModel
from palmette.encoder.base import States
from palmette.errors import ConfigError, DuplicateIdError, EncodingError, InputError, NotFoundError
from support.tiny import COLOURS, documents


def test_adding_twice_changes_nothing_and_other_text_is_refused(stored: Index) -> None:
    def keys() -> list[int]:
        with stored.backend.read() as view:
            return view.keys().tolist()

    before, held = stored.search("red owl", k=48), keys()
    assert stored.add(documents()) == [d.id for d in documents()]
    assert keys() == held, "nothing is stored again"
    assert stored.search("red owl", k=48) == before
    with pytest.raises(DuplicateIdError, match=r"'red-owl'.*upsert"):
        stored.add([Document(id="new", text="new"), Document(id="red-owl", text="another text")])
    with pytest.raises(DuplicateIdError, match="given twice"):
        stored.add([Document(id="twin", text="one"), Document(id="twin", text="two")])
    assert len(stored) == 48, "nothing of a refused add is kept"
    assert stored.get(["new", "twin"]) == [None, None]


def test_upsert_replaces_what_changed_and_only_that(index: Index) -> None:
    stale = next(h for h in index.search("where does the red owl live?", k=48) if h.id == "red-owl")
    changed = Document(id="red-owl", text="A submarine dives under the polar ice.", metadata={"colour": "red"})
    changes = index.upsert([*documents()[:2], *documents()[3:], changed, Document(id="new", text="brand new")])
    assert (changes.added, changes.updated, len(changes.unchanged)) == (["new"], ["red-owl"], 47)
    assert index.get(["red-owl"]) == [changed]
    assert index.search("submarine under the polar ice", k=1)[0].id == "red-owl"
    assert len(index) == 49
    with pytest.raises(NotFoundError, match="search again"):
        stale.explain()


def test_upsert_and_delete_in_one_transaction(stored: Index) -> None:
    changes = stored.upsert(["brand new text"], delete=["red-owl", "nobody"])
    assert (len(changes.added), changes.deleted) == (1, ["red-owl"])
    assert len(stored) == 48
    kept = stored.upsert([documents()[0]], delete=["red-cat"])
    assert (kept.unchanged, kept.deleted) == (["red-cat"], []), "what is given stays"


def test_delete_is_idempotent_and_by_filter(index: Index) -> None:
    assert index.delete(["red-owl", "nobody", "red-owl"]) == ["red-owl"]
    assert index.delete(["red-owl"]) == []
    assert "red-owl" not in [hit.id for hit in index.search("red owl", k=48)]
    gone = index.delete(filter={"animal": "hen"})
    assert sorted(gone) == sorted(f"{colour}-hen" for colour in COLOURS)
    assert len(index) == 48 - 1 - len(COLOURS)
    kept = index.search("owl", k=48)
    index.compact()
    assert index.search("owl", k=48) == kept
    assert index.stats().reclaimable == 0
    with pytest.raises(InputError, match="ids or a filter"):
        index.delete()


def test_an_emptied_index_still_answers(index: Index) -> None:
    index.delete([d.id for d in documents()])
    assert len(index) == 0
    assert index.search("owl") == []
    index.compact()
    assert index.search("owl", filter={"colour": "red"}) == []
    assert index.search("where does the owl live?", lexical=0.5) == []
    index.add([documents()[0]])
    assert [hit.id for hit in index.search("owl")] == ["red-cat"]


def test_unusable_documents_are_refused_and_lose_nothing(shared: Index) -> None:
    for bad, words in [
        ([Document(id="fine", text="fine"), {"txt": "a dict"}], "document 1: .*'text'"),
        (["fine", "  "], "document 1: .*empty"),
        ({"text": "a"}, "write \\[document\\]"),
        (Document(id="one", text="one"), "write \\[document\\]"),
        (None, "got one NoneType"),
        ([3], "document 0: cannot make a document of int"),
        ([Document(id="n", text="x", metadata={"bad": float("inf")})], "JSON values only"),
    ]:
        with pytest.raises(InputError, match=words):
            shared.add(bad)
    assert len(shared) == 48
    assert shared.add([]) == []
    with pytest.raises(NotFoundError, match=r"no file or folder 'one text'"):
        shared.add("one text")
    for call, words in [
        (lambda: shared.get("red-owl"), r"write \['red-owl'\]"),
        (lambda: shared.get(5), "ids must be a list of str, got int"),
        (lambda: shared.delete(None, filter={}), "an empty filter would delete every document"),
        (lambda: shared.search("owl", threshold="high"), "threshold must be a number"),
        (lambda: shared.search("owl", threshold=float("nan")), "threshold must be between 0 and 1, got nan"),
        (lambda: shared.search(np.array(["a", "b"])), "list of str"),
        (lambda: Index.in_memory(3), "a model must be a Model"),
        (lambda: Index.create("", shared.model), "a path must be"),
    ]:
        with pytest.raises((ConfigError, InputError), match=words):
            call()
    assert len(shared) == 48


def test_a_huge_document_is_stored_whole(stored: Index) -> None:
    text = "elephant " + "words and more words " * 90_000  # just below the limit
    stored.add([Document(id="huge", text=text)])
    assert stored.get(["huge"])[0].text == text
    assert stored.search("elephant words and more words", k=1)[0].id == "huge"


def test_an_encoder_that_returns_nan_loses_nothing() -> None:
    class Broken(FakeEncoder):
        broken = False

        def forward(self, texts, kind, outputs) -> States:
            states = super().forward(texts, kind, outputs)
            for row, text in enumerate(texts):
                if self.broken and "poison" in text:
                    states.pooled[row] = float("nan")
            return states

    encoder = Broken(48)
    made = Index.in_memory(SpaceModel.untrained(encoder))
    made.add(["a text", "another"])
    encoder.broken = True
    with pytest.raises(EncodingError, match="poison"):
        made.add(["more", "the poison", "still more"])
    with pytest.raises(EncodingError):
        made.search("poison")
    assert len(made) == 2


def test_small_changes_do_not_hold_the_lock_while_they_encode(space: Model, tmp_path, monkeypatch) -> None:
    index = Index.create(tmp_path / "i", space, lock_timeout=0.2)
    encoding, go_on = threading.Event(), threading.Event()
    original = type(space).encode_documents

    def slow(self, batch, *more):
        if any("slow" in document.text for document in batch):
            encoding.set()
            assert go_on.wait(30)
        return original(self, batch, *more)

    monkeypatch.setattr(type(space), "encode_documents", slow)
    refused: list[Exception] = []

    def add_slowly() -> None:
        try:
            index.add([Document(id="s", text="slow one")])
        except DuplicateIdError as error:
            refused.append(error)

    adding = threading.Thread(target=add_slowly)
    adding.start()
    assert encoding.wait(30)
    index.add([Document(id="q", text="quick one"), Document(id="s", text="its id")])  # no LockedError
    go_on.set()
    adding.join()
    assert index.get(["q", "s"])[1].text == "its id"
    assert len(refused) == 1, "the decision was made again under the lock"
