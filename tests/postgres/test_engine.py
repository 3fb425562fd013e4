"""An index in PostgreSQL holds what a folder holds and finds what it finds; what is its own: URLs, roles, failures."""

from __future__ import annotations

import pickle
import random
import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from palmette import Document, Index
from palmette.errors import (
    ConfigError,
    CorruptIndexError,
    FormatError,
    LockedError,
    NotFoundError,
    PalmetteError,
    ReadOnlyError,
    StoreError,
)
from palmette.search.plan import ArraySpec
from palmette.testing import EngineContract
from support import postgres, tiny
from support.stores import SPECS, delete, doc, put, state_for, state_of

pytest.importorskip("psycopg", reason="needs psycopg: pip install 'psycopg[binary]'")
from palmette_postgres import view, writer
from palmette_postgres.backend import PostgresBackend

FOUND = (ArraySpec("leaves", (8,), searched="overlap"), *SPECS[1:])


class TestContract(EngineContract):
    """The contract that strangers import."""

    def new_url(self) -> str:
        postgres.server()
        return postgres.new_url()


@pytest.fixture
def url() -> str:
    postgres.server()
    where = postgres.new_url()
    PostgresBackend.create(where, FOUND, fingerprint="model", language="english")
    return where


@pytest.fixture
def backend(url: str) -> Iterator[PostgresBackend]:
    made = PostgresBackend.open(url, lock_timeout=0.2)
    yield made
    made.close()


def schema_of(url: str) -> str:
    return re.sub(".*index=", "", url)


QUERIES = ["golden owl and redcat", "blackhen", '"cat dog"', "where do the bluebee and the white cow sing?"]


def test_above_some_size_graphs_and_indexes_find_them(monkeypatch: pytest.MonkeyPatch) -> None:
    postgres.server()
    monkeypatch.setattr(view, "SMALL", 200)
    monkeypatch.setattr(writer, "SMALL", 200)
    monkeypatch.setattr(writer, "INDEX_WORDS", 100)
    monkeypatch.setattr(view, "FEW", 40)
    here = Index.build(tiny.many_documents(900), tiny.space())
    there = here.copy_to(postgres.new_url())
    names = {name for (name,) in postgres.run(
        f"SELECT indexname FROM pg_indexes WHERE schemaname = '{schema_of(str(there.path))}'")}  # fmt: skip
    assert {"graph_v_vector", "words_terms", "documents_values"} <= names
    assert there.search(QUERIES, k=20, filter={"n": 3}) == here.search(QUERIES, k=20, filter={"n": 3}), "all compared"
    for more in ({}, {"filter": {"n": {"$lt": 6}}}, {"lexical": 0}):
        for one, other in zip(there.search(QUERIES, k=10, **more), here.search(QUERIES, k=10, **more), strict=True):
            assert len({hit.id for hit in one} & {hit.id for hit in other}) >= len(other) - 1
    assert there.search(QUERIES, k=20, lexical=1) == here.search(QUERIES, k=20, lexical=1)
    assert pickle.loads(pickle.dumps(there)).search(QUERIES, k=20, lexical=1) == here.search(QUERIES, k=20, lexical=1)
    there.add(["one more golden owl"])
    assert there.search("one more golden owl", k=1)[0].document.text == "one more golden owl"
    there.verify()


def test_the_best_by_words_are_a_folders_where_rare_words_do_not_settle_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words as frequent as in a language, of which a question has some: keys and scores to the bit."""
    postgres.server()
    monkeypatch.setattr(writer, "INDEX_WORDS", 100)
    monkeypatch.setattr(view, "FEW", 10)
    rng, words = random.Random(5), [f"{a}{b}" for a in tiny.COLOURS for b in "abcdefghijklmnopqrstuvwxyz"]
    chances = [1 / (place + 3) for place in range(len(words))]
    texts = [" ".join(rng.choices(words, chances, k=20)) for _ in range(900)]
    here = Index.build([Document(str(n), text, {"n": n % 9}) for n, text in enumerate(texts)], tiny.space())
    there = here.copy_to(postgres.new_url())
    questions = [rng.sample(text.split(), size) for text in texts[:12] for size in (3, 7)]
    for asked in map(" ".join, [*questions, rng.choices(words, chances, k=40)]):
        for condition, most in ((None, 1), (None, 4), (None, 60), ({"n": {"$lt": 6}}, 3), ({"n": 2}, 5)):
            with there.backend.read(condition) as one, here.backend.read(condition) as other:
                found, expected = one.words(asked, most), other.words(asked, most)
                assert found.keys.tolist() == expected.keys.tolist()
                assert found.scores.tolist() == expected.scores.tolist()


def test_views_close_and_one_object_writes_once_at_a_time(backend: PostgresBackend) -> None:
    put(backend, doc("a"), doc("c", ""))
    with backend.read() as before, backend.write() as change:
        change.delete(["a"])
        with pytest.raises(LockedError, match="is being written"):
            put(backend, doc("b"))
    with pytest.raises(StoreError, match="this view is closed"):
        before.keys()
    counted = f"SELECT count(*) > 0 FROM {backend.db.schema}.counts WHERE passages = 0"
    assert postgres.run(counted) == [(True,)]
    backend.compact()
    assert postgres.run(counted) == [(False,)]
    assert state_of(backend) == state_for([doc("c", "")])
    backend.verify()


def test_what_postgresql_has_no_text_for(backend: PostgresBackend) -> None:
    odd = [
        Document(
            "a\0b", "null \0 and \1\2 \1\3", {"k\0": ["\0", {"\1": 1.0}], "z": 1e22, "a": 10**18}, {}, {"p": "\0"}
        ),
        Document("x" * 9000, "a long id", {"n" * 3000: "v" * 5000}),
        Document("deep", "x", {"big": [1.0, 0.1, -0.0, 2**62], "order": {"zz": 1, "a": 2}}),
    ]
    put(backend, *odd)
    assert backend.get([one.key for one in odd] + ["a", "\ud800"]) == [*odd, None, None]
    with backend.write() as change:
        change.note("n\0", "v\0")
        assert change.digests(["a\0b", "\ud800"]) == {"a\0b": odd[0].digest}
    with backend.read() as opened:
        assert opened.note("n\0") == "v\0"
    backend.verify()
    [[text, metadata]] = postgres.run(f"SELECT text, metadata FROM {backend.db.schema}.documents WHERE id = 'deep'")
    assert (text, metadata) == ("x", odd[2].metadata)
    assert delete(backend, *[one.key for one in odd]) == [one.key for one in odd]
    assert backend.state().names == {}


def test_texts_are_the_same_in_every_environment(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    with closing(PostgresBackend.open(url)) as made:
        put(made, doc("語", "grüße", colour="grün"))
        with made.read({"colour": "grün"}) as opened:
            assert opened.ids(opened.words("grüße", 3).keys.tolist()) == ["語"]


def test_damage_is_named(backend: PostgresBackend) -> None:
    put(backend, doc("a"), doc("b"))
    damages = {
        "UPDATE documents SET text = 'forged' WHERE id = 'a'": "document 'a'",
        "UPDATE passages SET array_tokens = 'x' WHERE key = 1": "its tokens has another number of rows",
        "UPDATE words SET entries = 'x' WHERE key = 1": "its words are cut off",
        "DELETE FROM words WHERE key = 2": "1 of 2 passages|2 of 2 passages",
        "DELETE FROM counts": "counts of words",
        "UPDATE state SET value = '{}'": "the state of .* is damaged",
        "DELETE FROM state": "lost its state",
    }
    for statement, told in damages.items():
        where = f"SET LOCAL search_path = {backend.db.schema}, public; {statement}"
        saved = "; ".join(
            f"CREATE TABLE saved_{n} AS TABLE {backend.db.schema}.{n}"
            for n in ("documents", "passages", "words", "counts", "state")
        )
        postgres.run(saved)
        postgres.run(f"BEGIN; {where}; COMMIT")
        with pytest.raises(CorruptIndexError, match=told):
            backend.verify()
        for name in ("documents", "passages", "words", "counts", "state"):
            own = f"{backend.db.schema}.{name}"
            postgres.run(f"TRUNCATE {own}; INSERT INTO {own} TABLE saved_{name}; DROP TABLE saved_{name}")
    backend.verify()


def test_places_that_cannot_be(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = "postgresql://host/db postgresql://host?index=docs postgres://h/a/b?index=c postgresql://[h/d?index=c"
    for one in bad.split():
        with pytest.raises(ConfigError, match="names no index: |names no index \\("):
            PostgresBackend.check_url(one)
    for name in ("Docs", "pg_docs", "public", "1docs", "a;drop", "x" * 60, "ä"):
        with pytest.raises(ConfigError, match="cannot name an index"):
            PostgresBackend.check_url(f"postgresql://host/db?index={name}")
    for secret in ("me:topsecret@host/db?index=docs", "host/db?index=docs&password=topsecret"):
        with pytest.raises(StoreError, match=r"holds a password.*PGPASSWORD") as caught:
            Index.open(f"postgresql://{secret}")
        assert "topsecret" not in str(caught.value)
    with pytest.raises(ConfigError, match="'timeuot'.*'timeout'"):
        PostgresBackend.open(f"{url}&timeuot=3")
    with pytest.raises(NotFoundError, match="no such database"):
        PostgresBackend.open(url.replace("/postgres?", "/nowhere?"))
    postgres.run("CREATE SCHEMA IF NOT EXISTS others")
    with pytest.raises(NotFoundError, match="another program's schema"):
        PostgresBackend.open(postgres.new_url(index="others"))
    monkeypatch.setattr("palmette_postgres.database.PAUSE", 0.001)
    with pytest.raises(StoreError, match="is the server running"):
        PostgresBackend.open("postgresql://127.0.0.1:1/db?index=docs")


def test_versions(url: str) -> None:
    state = f"{schema_of(url)}.state"
    for number, advice in ((0, "index the documents anew"), (9, "upgrade palmette-postgres")):
        postgres.run(f"UPDATE {state} SET value = regexp_replace(value, '\"format\": \\d', '\"format\": {number}')")
        with pytest.raises(FormatError, match=advice):
            PostgresBackend.open(url)


def test_a_role_that_may_only_read(backend: PostgresBackend) -> None:
    put(backend, doc("a"), doc("b", lang="en"))
    name = backend.db.schema
    postgres.run(
        "DROP ROLE IF EXISTS reader", "CREATE ROLE reader LOGIN", f"GRANT USAGE ON SCHEMA {name} TO reader",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA {name} TO reader",
    )  # fmt: skip
    reader = PostgresBackend.open(backend.url.replace("user=postgres", "user=reader"))
    assert state_of(reader) == state_of(backend)
    assert [one.key for one in reader.scan({"lang": "en"})] == ["b"]
    with pytest.raises(ReadOnlyError, match="this role may not"):
        put(reader, doc("c"))
    with pytest.raises(ReadOnlyError, match="this role may not"):
        PostgresBackend.create(postgres.new_url(user="reader"), SPECS, fingerprint="f", language=None)
    reader.close()
    with pytest.raises(StoreError, match="closed; open it again"):
        reader.get(["a"])
    postgres.run("DROP OWNED BY reader", "DROP ROLE reader")


def test_another_index_in_its_place(backend: PostgresBackend) -> None:
    put(backend, doc("a"))
    with backend.read() as opened:
        postgres.run(f"ALTER SCHEMA {backend.db.schema} RENAME TO moved_{backend.db.schema}")
        with pytest.raises(StoreError, match="no longer there"):  # tables are looked up at each statement
            opened.keys_of(["a"])
    for _ in range(2):
        with pytest.raises(StoreError, match="no longer there"):
            backend.get(["a"])
    with pytest.raises(StoreError, match="no longer there"):
        put(backend, doc("b"))
    PostgresBackend.create(backend.url, FOUND, fingerprint="model", language="english")
    for call in (lambda: backend.get(["a"]), lambda: put(backend, doc("b")), backend.stats, backend.verify):
        with pytest.raises(StoreError, match="holds another index than the one that was opened"):
            call()


def test_a_statement_takes_no_longer_than_allowed(url: str) -> None:
    slow = PostgresBackend.open(f"{url}&timeout=1")
    with pytest.raises(StoreError, match="took more than 1 s"), slow.read() as opened:
        opened.query("SELECT pg_sleep(9)::text")
    assert slow.get(["a"]) == [None]
    slow.close()
    narrow = PostgresBackend.open(f"{url}&timeout=1&connections=2")
    with narrow.read(), narrow.read(), pytest.raises(StoreError, match="connections=4"):
        narrow.get(["a"])
    narrow.close()


def test_metadata_and_text_by_plain_sql(backend: PostgresBackend) -> None:
    put(backend, doc("a", "the red owl", lang="en", tags=["x", "y"]), doc("b", "le hibou", lang="fr"))
    name = backend.db.schema
    assert postgres.run(f"SELECT id, text FROM {name}.documents WHERE metadata ->> 'lang' = 'en'") == [
        ("a", "the red owl")
    ]
    assert postgres.run(f"SELECT id FROM {name}.documents WHERE metadata -> 'tags' ? 'y'") == [("a",)]
    [[size]] = postgres.run(f"SELECT count(*) FROM {name}.passages JOIN {name}.documents d ON d.key = document")
    assert size == backend.stats().passages == 2
    assert backend.stats().bytes > 8192


def test_every_error_of_the_database_is_ours(backend: PostgresBackend) -> None:
    put(backend, doc("a"))
    name = backend.db.schema
    for table in ("words", "passages", "notes", "documents", "state"):
        postgres.run(f"ALTER TABLE {name}.{table} RENAME TO hidden")
        with pytest.raises(PalmetteError, match=re.escape(f"index={name}")):
            with backend.read({"$id": ["a"]}) as opened:
                opened.note("x")
                opened.stored(opened.keys().tolist())
                opened.words("text of a", 3)
            put(backend, doc("b"))
        postgres.run(f"ALTER TABLE {name}.hidden RENAME TO {table}")
    assert np.array_equal(backend.scan().__next__().text, "text of a")


def test_what_views_of_one_commit_share_may_be_forgotten_at_any_moment(backend: PostgresBackend) -> None:
    """By another thread's view, even between two looks at it."""

    class Forgetful(dict[Any, Any]):
        def __contains__(self, key: object) -> bool:
            return super().__contains__(key) and self.pop(key) is not self

    put(backend, doc("a", lang="en"), doc("b"))
    backend._memo = backend.state().generation, Forgetful()
    for _ in range(2):
        with backend.read({"lang": "en"}) as view:
            assert (len(view), view.ids(view.words("text", 3).keys.tolist())) == (1, ["a"])
    assert 0 < len(backend._memo[1]) <= 256
