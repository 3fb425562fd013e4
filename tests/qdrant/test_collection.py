"""A Qdrant collection holds what a folder holds and finds what it finds; what is its own: URLs, leases, failures."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from palmette import Index
from palmette.errors import ConfigError, CorruptIndexError, InputError, NotFoundError, StoreError
from palmette.search.plan import ArraySpec
from palmette.store.engines import is_url
from palmette.store.filters import parse_filter
from palmette.testing import EngineContract
from palmette_qdrant.backend import QdrantBackend
from palmette_qdrant.client import Collection
from palmette_qdrant.view import QdrantView
from palmette_qdrant.writer import QdrantWriter
from support import tiny
from support.stores import SPECS, arrays_of, doc, fast_place, put, state_for, state_of

pytest.importorskip("qdrant_client")
FOUND = (ArraySpec("leaves", (8,), searched="overlap"), *SPECS[1:])


class TestContract(EngineContract):
    """The contract that strangers import."""

    ties_are_ordered = False

    @pytest.fixture(autouse=True)
    def _folder(self, folder: str) -> None:
        self.folder = folder

    def new_url(self) -> str:
        return f"qdrant+local://{self.folder}/{uuid4().hex}/docs"

    @pytest.mark.skip(reason="local mode opens a folder once, and the test opens it twice")
    def test_copies_in_and_out_are_whole(self) -> None: ...

    @pytest.mark.skip(reason="local mode opens a folder once, and the test opens it twice")
    def test_one_writes_at_a_time(self) -> None: ...


@pytest.fixture
def folder() -> Iterator[str]:
    with TemporaryDirectory(dir=fast_place()) as made:
        yield made


@pytest.fixture
def url(folder: str) -> str:
    QdrantBackend.create(f"qdrant+local://{folder}/docs", FOUND, fingerprint="model", language="english")
    return f"qdrant+local://{folder}/docs"


@pytest.fixture
def backend(url: str) -> Iterator[QdrantBackend]:
    made = QdrantBackend.open(url, lock_timeout=0.1)
    yield made
    made.close()


def test_a_collection_is_copied_to_a_folder_and_opened_with_the_model_in_it(folder: str) -> None:
    given, queries = tiny.many_documents(60), ["golden owl and redcat", "blackhen"]
    for model in (tiny.space(), tiny.tree()):
        place = f"qdrant+local://{folder}/{model.method}"
        there = Index.build(given, model).copy_to(f"{place}?levels=2")
        expected = there.search(queries, k=9)
        with there.copy_to(Path(folder) / model.method) as back:
            assert back.search(queries, k=9) == expected
        if model.method == "tree":
            with pytest.raises(InputError, match=r"created for levels 5, 2, not 3: .*\?levels=3"):
                there.search(queries, level=3)
        there.close()
        with Index.open(place) as again:
            assert again.search(queries, k=9) == expected
            assert again.path == pickle.loads(pickle.dumps(again.path))


def test_a_writer_that_was_killed_in_this_folder_is_forgotten(url: str, backend: QdrantBackend) -> None:
    put(backend, doc("a"))
    QdrantWriter(backend.db, 0.1).put([doc("b")], arrays_of([doc("b")]))
    backend.close()
    again = QdrantBackend.open(url)
    put(again, doc("c"))
    assert state_of(again) == state_for([doc("a"), doc("c")])
    again.close()
    with pytest.raises(StoreError, match="closed; open it again"):
        again.get(["a"])


def test_places_that_cannot_be(url: str, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotFoundError, match="create it first"):
        Index.open(f"qdrant+local://{folder}/other")
    for bad in (
        "qdrant://[host/docs",
        "qdrant://host:6333",
        "qdrant:///folder/name",
        "qdrant+local://name",
        "qdrant://host/a/b",
    ):
        with pytest.raises(ConfigError, match="names no collection"):
            QdrantBackend.open(bad)
    with pytest.raises(ConfigError, match="did you mean 'timeout'|timeout"):
        QdrantBackend.open(f"{url}?timeuot=3")
    given = Collection("qdrants://host:6333/docs?ef=64&exact=true&levels=2,3&tenant=who")
    assert (given.options.ef, given.options.exact, given.options.levels) == (64, True, (2, 3))
    clients: list[dict[str, Any]] = []
    monkeypatch.setattr("qdrant_client.QdrantClient", lambda **options: clients.append(options))
    monkeypatch.setenv("OTHER_KEY", "other")
    Collection("qdrants://host:6333/docs?key=OTHER_KEY")
    Collection("qdrant://host:6333/docs")
    assert [(client["url"], client["api_key"]) for client in clients] == [
        ("https://host:6333", "other"),
        ("http://host:6333", None),
    ]


@pytest.mark.parametrize(
    ("failures", "status", "told"),
    [
        (2, None, None),
        (2, 503, None),
        (9, None, "no answer"),
        (9, 429, "answered 429"),
        (2, 0, None),
        (9, 0, "answered 429"),
        (1, 401, "QDRANT_API_KEY"),
        (1, 404, "create it"),
    ],
)
def test_requests_are_repeated_where_that_may_help(
    failures: int, status: int | None, told: str | None, backend: QdrantBackend, monkeypatch
) -> None:
    from httpx import Headers
    from qdrant_client.common.client_exceptions import ResourceExhaustedResponse
    from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

    waits: list[float] = []
    monkeypatch.setattr(backend.db, "sleep", waits.append)
    call, left = backend.db.client.retrieve, [failures]

    def flaky(*given: Any, **named: Any) -> Any:
        if left[0]:
            left[0] -= 1
            if status == 0:  # with a time to wait
                raise ResourceExhaustedResponse("busy", 3)
            gone = ResponseHandlingException(OSError("gone"))
            raise UnexpectedResponse(status, "no", b"", Headers()) if status else gone
        return call(*given, **named)

    monkeypatch.setattr(backend.db.client, "retrieve", flaky)
    if told is None:
        assert backend.stats().documents == 0
        assert len(waits) == failures
        assert waits == sorted(waits)
        return
    with pytest.raises((StoreError, NotFoundError), match=told):
        backend.stats()
    assert left[0] == max(0, failures - (1 if status in (401, 404) else 6))


def test_names_are_swapped_and_tenants_kept_apart(url: str, folder: str, backend: QdrantBackend) -> None:
    put(backend, doc("a", "old"))
    backend.close()
    QdrantBackend.create(f"{url}2?tenant=who", FOUND, fingerprint="model", language="english")
    new = QdrantBackend.open(f"{url}2")
    put(new, doc("a", "new", who="ada"), doc("b", "new", who="bob"))
    new.alias("current")
    new.close()
    with_name = QdrantBackend.open(f"qdrant+local://{folder}/current")
    assert with_name.state().indexed == ["who"]
    assert [one.key for one in with_name.scan(parse_filter({"who": "ada"}))] == ["a"]
    with_name.close()
    old = QdrantBackend.open(url)
    old.alias("current")
    old.close()
    swapped = QdrantBackend.open(f"qdrant+local://{folder}/current")
    assert [one.text for one in swapped.scan()] == ["old"]
    swapped.close()


def test_lists_are_counted_where_a_filter_passes(folder: str) -> None:
    made = Index.build(tiny.documents(), tiny.paths(), f"qdrant+local://{folder}/docs")
    for within in (made, made.filtered({"colour": "red"})):
        with within.backend.read() as view:
            rows = view.rows("leaves", view.keys())
            assert view.list_sizes("leaves").tolist() == np.bincount(rows.ravel()).tolist()
    db = made.backend.db
    db("set_payload", {"list_leaves": [-3]}, db.where(db.equals("id", tiny.documents()[0].key)))
    db.memo.clear()
    with made.backend.read() as view, pytest.raises(CorruptIndexError, match=r"^qdrant.*leaves names lists outside"):
        view.list_sizes("leaves")
    made.close()


@pytest.mark.parametrize("place", ["qdrant://host:6333/docs", "s3://bucket/docs", Path("qdrant://host:6333/docs")])
def test_a_url_is_no_folder(place: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = Index.build(tiny.documents(), tiny.space(), tmp_path / "index")
    with pytest.raises(InputError, match="is a URL, but a folder"):
        made.backup(place)
    with pytest.raises(InputError, match="is a URL, but a folder"):
        Index.restore(tmp_path / "index", place)
    if not is_url(place):
        with pytest.raises(InputError, match="is a URL, but a folder"):
            Index.create(place, tiny.space())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index"]


def test_views_of_two_commits_share_no_statistics(backend: QdrantBackend) -> None:
    """A view of the commit before, in another thread, must not fill what the latest has learned of its words."""
    put(backend, doc("a", "the red owl"))
    latest = backend.state()
    before = latest.model_copy(update={"generation": latest.generation - 1})
    views, interrupted = list[QdrantView](), list[object]()

    class Interrupted(dict[object, Any]):
        """Lets another thread open a view of the latest commit once its stamp was read."""

        def get(self, key: object, default: Any = None) -> Any:
            value = super().get(key, default)
            if backend.db.memo is self and not interrupted:
                interrupted.append(key)
                with ThreadPoolExecutor(1) as pool:
                    views.append(pool.submit(QdrantView, backend.db, latest, None).result())
            return value

    QdrantView(backend.db, before, None)
    backend.db.memo = Interrupted(backend.db.memo)
    assert QdrantView(backend.db, before, None)._memo is not views[0]._memo


def test_a_view_reads_nothing_outside_its_filter_however_often_it_is_asked(backend: QdrantBackend) -> None:
    """Also of points that it has met before: refused ones, and those that statistics of words read."""
    put(backend, doc("a", "the red owl sings", who="ada"), doc("b", "the red owl sleeps", who="bob"))
    with backend.read() as every, backend.read({"who": "bob"}) as own:
        [key] = every.keys_of(["a"])["a"]
        assert own.ids(own.words('"red owl" sings', 3).keys.tolist()) == ["b"]
        for read in (own.documents, own.ids, own.document_keys, lambda keys: own.rows("leaves", keys)) * 2:
            with pytest.raises(NotFoundError, match="fails its filter"):
                read([key])


def test_what_views_of_one_commit_share_is_bounded(backend: QdrantBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palmette_qdrant.view.KEPT", 20)
    put(backend, doc("a", "the red owl sings"))
    for number in range(60):
        with backend.read() as view:
            assert view.ids(view.words(f"owl{number} red", 1).keys.tolist()) == ["a"]
        assert sum(map(len, [own for own in backend.db.memo.values() if isinstance(own, dict)])) <= 30
