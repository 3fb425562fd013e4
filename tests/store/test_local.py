"""The local backend's contract: what goes in comes out, and what cannot go in says why."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from palmette.arrays import Ragged
from palmette.errors import (
    ConfigError,
    DuplicateIdError,
    EncodingError,
    InputError,
    ModelMismatchError,
    NotFoundError,
    StoreError,
)
from palmette.lexical.postings import TYPES
from palmette.search.plan import ArraySpec
from palmette.store.filters import parse_filter
from palmette.store.local import segments
from palmette.store.local.backend import LocalBackend
from palmette.store.protocols import Backend
from palmette.types import Document
from support.stores import SPECS, arrays_of, delete, doc, key_of, plan, put, ragged_of, state_for, state_of
from support.vectors import same


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[LocalBackend]:
    """In a folder; one in memory is a folder that is not flushed and goes with the object."""
    with LocalBackend.create(tmp_path / "index", SPECS, fingerprint="model") as made:
        yield made


def test_what_goes_in_comes_out(backend: LocalBackend) -> None:
    seam: Backend = backend
    metadata = {"nested": {"list": [1, 2.5, None, True]}, "empty": {}}
    fields, payload = {"title": "T", "brands": ["a"]}, {"raw": [{"x": 1}]}
    rich = Document("ü/😀 '\"\x00", "zero \x00 byte", metadata, fields, payload)
    put(backend, rich, doc("b"))
    assert state_of(backend) == state_for([rich, doc("b")])
    assert seam.get([rich.key, "none", "b"]) == [rich, None, doc("b")]
    assert [document.id for document in seam.scan()] == [rich.id, "b"]
    assert (backend.fingerprint, backend.arrays) == ("model", SPECS)


def test_keys_are_never_used_again(backend: LocalBackend) -> None:
    put(backend, doc("a"), doc("b"))
    with backend.read() as view:
        old = key_of(view, "a")
    delete(backend, "a", "b")
    backend.compact()
    put(backend, doc("a"))
    with backend.read() as view:
        assert key_of(view, "a") == 3 != old
        assert key_of(view, "b") is None
        with pytest.raises(NotFoundError, match="key 1 is not in this view"):
            view.documents([old])


def test_a_write_is_all_or_nothing(backend: LocalBackend) -> None:
    put(backend, doc("a"))
    before = state_of(backend)
    with pytest.raises(OSError, match="the caller's own"), backend.write() as writer:
        writer.put([doc("b")], arrays_of([doc("b")]))
        writer.delete(["a"])
        raise OSError("the caller's own")
    assert state_of(backend) == before
    assert not list((backend.path / "segments").glob("*.tmp"))
    backend.verify()


def test_a_writer_sees_its_own_change(backend: LocalBackend) -> None:
    a, b = doc("a"), doc("b")
    put(backend, a)
    with backend.write() as writer:
        assert writer.digests(["a", "b"]) == {"a": a.digest}
        writer.put([b], arrays_of([b]))
        assert writer.delete(["a", *(f"missing{n}" for n in range(600)), "a"]) == ["a"]
        assert writer.digests(["a", "b"]) == {"b": b.digest}
        assert [document.id for document in backend.scan()] == ["a"]  # and nobody else does
    assert [document.id for document in backend.scan()] == ["b"]
    with pytest.raises(StoreError, match="over"):
        writer.delete(["b"])


def test_one_id_twice_in_a_write(backend: LocalBackend) -> None:
    same, other = doc("a", "one"), doc("a", "two")
    with backend.write() as writer:
        writer.put([same, doc("b")], arrays_of([same, doc("b")]))
        with pytest.raises(DuplicateIdError, match="'a'"):
            writer.put([same, doc("c"), same], arrays_of([same, doc("c"), same]))
        writer.put([doc("d"), other], arrays_of([doc("d"), other]))
    assert state_of(backend) == state_for([doc("b"), doc("d"), other])  # the refused put added nothing, "c" included
    with pytest.raises(DuplicateIdError, match="'x'"):
        put(backend, doc("x", "one"), doc("x", "two"))
    with backend.write() as writer:  # taken back, it is free again
        for one in (doc("y", "one"), doc("y", "two")):
            writer.delete(["y"])
            writer.put([one], arrays_of([one]))
    assert backend.get(["y"]) == [doc("y", "two")]
    backend.verify()


def test_a_write_that_changes_nothing_writes_nothing(backend: LocalBackend) -> None:
    put(backend, doc("a"))
    before = sorted((path, path.stat().st_mtime_ns) for path in backend.path.rglob("*.npy"))
    with backend.write() as writer:
        assert writer.delete(["missing"]) == []
        writer.put([], arrays_of([]))
    assert sorted((path, path.stat().st_mtime_ns) for path in backend.path.rglob("*.npy")) == before


def broken(value: float) -> dict[str, np.ndarray]:
    return {"tokens": np.full((1, 2, 3), value, np.float16)}


def rows(count: int, width: int, documents: int = 1) -> Ragged:
    return ragged_of(*[np.zeros((count, width), np.int8)] * documents)


REFUSED = [
    (doc("a"), None, InputError, ["leaves, tokens, sentences", "none"]),
    (doc("a"), {"leaves": np.zeros((1, 8))}, InputError, ["'leaves'", "float32 (1, 8)", "float64 (1, 8)"]),
    (doc("a"), {"leaves": np.zeros((1, 9), np.float32)}, InputError, ["'leaves'", "(1, 8)", "(1, 9)"]),
    (doc("a"), {"leaves": np.zeros((2, 8), np.float32)}, InputError, ["'leaves'", "1 passages", "(2, 8)"]),
    (doc("a"), {"sentences": np.zeros((1, 3), np.int8)}, InputError, ["'sentences' must be Ragged", "ndarray"]),
    (doc("a"), {"leaves": rows(1, 8)}, InputError, ["'leaves' must be a NumPy array", "Ragged"]),
    (doc("a"), {"sentences": rows(1, 4)}, InputError, ["int8 (1, 3) for 1 passages", "int8 (1, 4)"]),
    (doc("a"), {"sentences": rows(2, 3, 2)}, InputError, ["for 1 passages", "int8 (4, 3) for 2 passages"]),
    (doc("broken"), broken(np.nan), EncodingError, ["'broken'"]),
    (doc("broken"), broken(np.inf), EncodingError, ["'broken'"]),
    (Document("a", "half \ud83d"), {}, InputError, ["its text holds half of a surrogate pair at position 5"]),
    (Document("a\udc00", "text"), {}, InputError, ["its id"]),
    (Document("a", "text", {"k": "\udc00"}), {}, InputError, ["its metadata"]),
    (Document("a", "text", {}, {"\udc00": 1}), {}, InputError, ["its fields"]),
    (Document("a", "text", {"k": 2**64}), {}, InputError, ["64 bits"]),
    (Document("a", "text", {"k": float("nan")}), {}, InputError, ["JSON"]),
    (Document("a", "text", {"k": {1, 2}}), {}, InputError, ["JSON"]),
]


@pytest.mark.parametrize(("document", "arrays", "error", "words"), REFUSED)
def test_what_cannot_be_written(document: Document, arrays: dict | None, error: type, words: list[str]) -> None:
    given = {} if arrays is None else {**arrays_of([doc("a")]), **arrays}
    with LocalBackend.in_memory(SPECS) as backend:
        with pytest.raises(error) as caught, backend.write() as writer:
            writer.put([document], given)
        assert all(word in str(caught.value) for word in words)
        assert state_of(backend) == {}


def test_ids_that_are_no_text_are_not_there(backend: LocalBackend) -> None:
    put(backend, doc("a"), doc("b"))
    assert delete(backend, "\ud800") == []
    assert backend.get(["\ud800"]) == [None]
    with backend.read() as view:
        assert key_of(view, "\ud800") is None


def test_views_are_narrowed_in_all_they_give(backend: LocalBackend) -> None:
    put(backend, *(doc(f"d{i}", lang="en" if i % 2 else "de") for i in range(10)))
    with backend.read() as everything, backend.read(parse_filter({"lang": "en"})) as view:
        assert len(view) == 5
        assert view.keys().tolist() == [2, 4, 6, 8, 10]
        assert view.ids([10, 2, 10]) == ["d9", "d1", "d9"]
        assert key_of(view, "d1") == 2
        assert key_of(view, "d0") is None
        assert key_of(everything, "d0") == 1
        for forbidden in (
            lambda: view.documents([1]),
            lambda: view.rows("leaves", [2, 1]),
            lambda: view.ragged("sentences", [2, 1]),
            lambda: view.ids([3]),
        ):
            with pytest.raises(NotFoundError):
                forbidden()
        assert set(view.candidates(plan(), 99).keys[0]) == {2, 4, 6, 8, 10}
        some = plan().among(view.keys()[1:3])
        assert sorted(view.candidates(some, 9).keys[0]) == [4, 6]


def test_an_empty_index_answers(backend: LocalBackend) -> None:
    with backend.read() as view:
        assert len(view) == 0
        assert view.candidates(plan(np.ones((2, 8))), 5).keys.shape == (2, 0)
        assert view.rows("tokens", []).shape == (0, 2, 3)
        assert view.ragged("sentences", []).values.shape == (0, 3)
    assert list(backend.scan()) == []
    backend.compact()
    backend.verify()


def test_closed_views_and_backends_say_so(backend: LocalBackend) -> None:
    put(backend, doc("a"))
    with backend.read() as view:
        pass
    ended = (lambda: view.documents([1]), lambda: key_of(view, "a"), lambda: view.candidates(plan(), 1))
    closed = (lambda: list(backend.scan()), lambda: put(backend, doc("a")), backend.stats, backend.verify)
    for uses in (ended, closed):
        for use in uses:
            if uses is closed:
                backend.close()
            with pytest.raises(StoreError, match="closed"):
                use()


def test_single_adds_leave_few_segments_and_compact_leaves_one(backend: LocalBackend) -> None:
    documents = [doc(f"d{i}") for i in range(30)]
    for document in documents:
        put(backend, document)
    assert 1 <= backend.stats().segments <= 5
    delete(backend, "d3", "d29")
    kept = state_for(document for document in documents if document.id not in ("d3", "d29"))
    assert state_of(backend) == kept
    with backend.read() as view:
        keys, before = view.keys(), view.candidates(plan(), 28)
    backend.compact()
    stats = backend.stats()
    assert (stats.documents, stats.segments, stats.reclaimable) == (28, 1, 0)
    assert len(list((backend.path / "segments").iterdir())) == 1
    with backend.read() as view:
        after = view.candidates(plan(), 28)
        assert np.array_equal(view.keys(), keys)
    assert same(after, before)
    delete(backend, *kept)
    backend.compact()
    assert (backend.stats().segments, backend.stats().documents) == (0, 0)


def test_what_is_large_is_not_copied_and_what_is_dead_goes(backend: LocalBackend) -> None:
    large = [doc(f"d{i}") for i in range(10)]
    put(backend, *large)
    put(backend, doc("small"))
    assert backend.stats().segments == 2
    delete(backend, *(document.key for document in large))
    assert (backend.stats().segments, backend.stats().reclaimable) == (1, 0)
    assert state_of(backend) == state_for([doc("small")])


def test_compacting_gives_back_space(backend: LocalBackend) -> None:
    put(backend, *(doc(f"d{i}", "long " * 200) for i in range(1000)))
    full = backend.stats().bytes
    delete(backend, *(f"d{i}" for i in range(950)))
    backend.compact()
    assert backend.stats().bytes < full / 4
    assert sum(path.stat().st_size for path in backend.path.rglob("*") if path.is_file()) < full / 2
    assert len(state_of(backend)) == 50


def test_reopening(tmp_path: Path) -> None:
    folder = tmp_path / "a ?b=1 # 100% c%20ü"
    with LocalBackend.create(str(folder), SPECS, fingerprint="model") as backend:
        put(backend, doc("a"), doc("b"))
        before = state_of(backend)
    files = sorted(path.name for path in folder.iterdir() if path.name != ".lock")
    assert files == ["commit.json", "index.sqlite3", "manifest.json", "segments"]
    for options in ({}, {"fingerprint": "model"}, {"verify": False}, {"engine": "exact"}):
        with LocalBackend.open(folder, **options) as backend:
            assert state_of(backend) == before
    with pytest.raises(ModelMismatchError, match=r"model, but the model given is other"):
        LocalBackend.open(folder, fingerprint="other")
    with pytest.raises(ConfigError, match="'annoy'.*exact, faiss"):
        LocalBackend.open(folder, engine="annoy")
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["arrays"][1] == {"name": "tokens", "shape": [2, 3], "dtype": "float16", "ragged": False}
    assert manifest["arrays"][2] == {"name": "sentences", "shape": [3], "dtype": "int8", "ragged": True}
    [segment] = (folder / "segments").iterdir()
    words = sorted(f"words-{name}.npy" for name in TYPES)
    files = ["keys.npy", "leaves.npy", "numbers.npy", "sentences.npy", "sentences.starts.npy", "tokens.npy", *words]
    assert sorted(path.name for path in segment.iterdir()) == files
    assert np.load(segment / "keys.npy", allow_pickle=False).tolist() == [1, 2]
    expected = arrays_of([doc("a"), doc("b")])
    assert np.array_equal(np.load(segment / "tokens.npy", allow_pickle=False), expected["tokens"])
    starts = np.load(segment / "sentences.starts.npy", allow_pickle=False)
    assert np.array_equal(starts, expected["sentences"].starts)


def test_what_a_killed_writer_left_goes_even_where_nothing_is_written(backend: LocalBackend) -> None:
    """On a full disk no commit may succeed until its space is free."""
    left = backend.path / "segments" / "0123456789abcdef.tmp"
    left.mkdir()
    with backend.read(), pytest.raises(KeyboardInterrupt), backend.write():
        assert not left.exists()
        raise KeyboardInterrupt


def test_a_foreign_folder_in_segments_is_left_alone(backend: LocalBackend) -> None:
    segments = backend.path / "segments"
    for name in ("my notes", "0123456789abcdef"):
        (segments / name).mkdir()
    put(backend, doc("a"))
    assert (segments / "my notes").is_dir()
    assert len(list(segments.iterdir())) == 2


@pytest.mark.parametrize(
    "spec", [("keys", (8,)), ("../up", (8,)), ("a", (8,), "object"), ("a", (8,), "no such type"), ("a", (0,))]
)
def test_array_specs_are_checked(tmp_path: Path, spec: tuple) -> None:
    with pytest.raises(InputError, match="array"):
        LocalBackend.create(tmp_path / "index", [ArraySpec(*spec)], fingerprint="model")
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize("closed", [True, False])
def test_an_index_in_memory_leaves_nothing_behind(closed: bool) -> None:
    backend = LocalBackend.in_memory(SPECS)
    put(backend, doc("a"))
    folder = backend.path
    assert folder.exists()
    if closed:
        backend.close()
    del backend
    assert not folder.exists()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="names open files by /proc")
def test_a_write_is_on_the_disk_before_it_counts(backend: LocalBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut keeps what was flushed: arrays, their folder, its name, the note, and then SQLite's commit."""
    flushed, fsync = list[str](), os.fsync

    def noted(descriptor: int) -> None:
        flushed.append(str(Path(f"/proc/self/fd/{descriptor}").readlink().relative_to(backend.path)))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    put(backend, doc("a"))
    [folder] = (backend.path / "segments").iterdir()
    draft = f"segments/{folder.name}.tmp"
    files = {f"{draft}/{path.name}" for path in folder.iterdir()}
    assert len(files) > 10
    assert set(flushed[: len(files)]) == files
    assert flushed[len(files) :] == [draft, "segments", "commit.json.tmp"]
    with backend._pool.connection() as connection:
        assert connection.execute("PRAGMA synchronous").fetchall() == [(2,)]  # full


def test_a_pool_can_be_closed_within_a_call_of_its_thread(backend: LocalBackend) -> None:
    """As a finaliser does that the garbage collector runs at an awkward moment."""

    def close() -> None:
        with backend._pool._lock:
            backend.close()

    thread = Thread(target=close, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()


def test_ragged_rows_are_merged_a_piece_at_a_time(backend: LocalBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    for batch in range(4):
        documents = [doc(f"d{batch}-{i}") for i in range(100)]
        rows = [rng.integers(-9, 9, (rng.integers(7000), 3)).astype(np.int8) for _ in documents]
        rows[7] = np.ones((30_000, 3), np.int8)  # one document larger than a piece
        with backend.write() as writer:
            writer.put(documents, {**arrays_of(documents), "sentences": ragged_of(*rows)})
    delete(backend, *(f"d{batch}-{i}" for batch in range(4) for i in range(0, 100, 3)))
    before = state_of(backend)
    monkeypatch.setattr(segments, "_CHUNK", 1 << 16)
    tracemalloc.start()
    backend.compact()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < sum(len(arrays) for _, arrays in before.values()) / 2
    assert state_of(backend) == before
    backend.verify()
