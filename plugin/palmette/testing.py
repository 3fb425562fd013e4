"""The contract of a storage engine as tests: an engine's distribution subclasses it, and pytest runs it.

    from palmette.testing import EngineContract

    class TestMyEngine(EngineContract):
        def new_url(self):
            return f"myengine://localhost/{uuid4().hex}"

Each test makes indexes of its own, and compares what they hold and find with a folder, to the bit. Nothing is trained,
and no model is loaded.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from palmette.arrays import Ragged, Stored, quantise
from palmette.encoder.fake import FakeEncoder
from palmette.errors import (
    ConfigError,
    DuplicateIdError,
    FilterError,
    InputError,
    LockedError,
    ModelMismatchError,
    NotFoundError,
    StoreError,
)
from palmette.index.index import Index
from palmette.methods.space import SpaceModel
from palmette.search.plan import ArraySpec, Lists, Score, SearchPlan
from palmette.store.engines import engine_of
from palmette.store.filters import matches, parse_filter
from palmette.store.local.backend import LocalBackend
from palmette.store.protocols import Backend, StorageEngine, View, read_array
from palmette.types import Document

COLOURS, ANIMALS = "red green blue white black golden".split(), "cat dog owl fox ant bee cow hen".split()
QUESTIONS = ["where does the red owl live?", "white hen", '"golden bee"', "it sings at night"]
FILTERS: list[dict[str, Any]] = [
    {"colour": "red"}, {"house": {"$gte": 20, "$lt": 30}}, {"tags": {"$all": ["red", "owl"]}}, {"house": 7.0},
    {"colour": {"$in": ["red", "blue"]}}, {"colour": {"$ne": "red"}}, {"place.floor": 2}, {"place": {"$exists": True}},
    {"odd": True}, {"odd": 1}, {"$not": {"tags": "owl"}}, {"$or": [{"colour": "red"}, {"house": 12}]},
    {"nothing": None}, {"$id": ["red-owl", "nobody"]}, {"weight": {"$gt": 0.5}}, {"house": {"$nin": [1, 2]}},
]  # fmt: skip
TEXT_FILTERS: list[dict[str, Any]] = [
    {"colour": {"$gt": "blue", "$lte": "red"}},
    {"colour": {"$contains": "ed"}},
    {"colour": {"$icontains": "RED"}},
]
"""Filters that compare text, which an engine may refuse with FilterError."""
SPECS = (
    ArraySpec("vector", (16,), searched="inner_product"), ArraySpec("half", (16,), "float16", searched="inner_product"),
    ArraySpec("parts", (3, 16), "int8", searched="inner_product", scales="factors"), ArraySpec("factors", (3,)),
    ArraySpec("lists", (1,), "int32", searched="lists"), ArraySpec("shares", (8,), "uint16", searched="overlap"),
    ArraySpec("pieces", (3,), "int8", ragged=True),
)  # fmt: skip


def documents(count: int = 48) -> list[Document]:
    """Small documents with metadata of every kind."""
    made = []
    for number in range(count):
        colour, animal = COLOURS[number // 8 % 6], ANIMALS[number % 8]
        metadata = {
            "colour": colour, "house": number, "tags": [colour, animal], "odd": bool(number % 2),
            "weight": number / 64, "place": {"floor": number % 3},
        }  # fmt: skip
        id = f"{colour}-{animal}" + ("" if number < 48 else f"-{number}")
        made.append(Document(id, f"The {colour} {animal} lives in house {number} and sings at night.", metadata))
    return made


class EngineContract:
    """Checks that every storage engine passes."""

    ties_are_ordered = True
    """Whether those with the lowest keys are found of passages whose scores by words are equal, or any of them."""

    def new_url(self) -> str:
        """URL of an index that is not there yet."""
        raise NotImplementedError("write new_url, which returns the URL of an index that is not there yet")

    # -- what people do with an index ------------------------------------------------------------------------

    def test_hits_scores_and_explanations_equal_a_folders(self) -> None:
        with self._both(documents()) as (here, there):
            for how in ({}, {"lexical": 0}, {"lexical": 1}, {"filter": {"colour": "red"}}, {"sentences": False}):
                assert there.search(QUESTIONS, 9, **how) == here.search(QUESTIONS, 9, **how), how
            red = [index.filtered({"colour": "red"}) for index in (there, here)]
            assert red[0].search(QUESTIONS, 9) == red[1].search(QUESTIONS, 9), "words are counted in the scope"
            hits = [index.search("red owl", 3)[0] for index in (there, here)]
            assert hits[0].explain().parts == hits[1].explain().parts

    def test_documents_change(self) -> None:
        with self._both(documents()) as (here, there):
            changed = [
                Document("red-owl", "a submarine under the ice", {"colour": "red"}),
                Document("new", "an anchor"),
            ]
            for index in (here, there):
                index.upsert(changed, delete=["red-cat", "nobody"])
                index.compact()
            assert there.search([*QUESTIONS, "submarine"], 9) == here.search([*QUESTIONS, "submarine"], 9)
            assert there.get(["red-owl", "red-cat"]) == [changed[0], None]
            assert [len(index) for index in (here, there)] == [48, 48]
            there.verify()
            there.delete([one.key for one in there.documents()])
            assert (len(there), there.search("owl")) == (0, [])

    def test_passages_of_documents(self) -> None:
        text = "\n\n".join(one.text for one in documents(16))
        long = [Document("long", text, {"colour": "red"}), documents(17)[16]]
        with self._both(long, passages={"tokens": 20}) as (here, there):
            assert there.stats().passages == here.stats().passages > 10
            assert there.search(QUESTIONS, 9) == here.search(QUESTIONS, 9)
            assert there.rank(QUESTIONS, 2) == here.rank(QUESTIONS, 2)
            assert list(there.documents()) == list(here.documents()) == long

    def test_copies_in_and_out_are_whole(self) -> None:
        with self._both(documents()) as (here, there), tempfile.TemporaryDirectory() as folder:
            with closing(there.copy_to(Path(folder) / "back")) as back:
                assert list(back.documents()) == list(here.documents())
                assert back.search(QUESTIONS, 9) == here.search(QUESTIONS, 9)
            url = str(there.path)
            with closing(Index.open(url)) as again:
                assert again.search(QUESTIONS, 9) == here.search(QUESTIONS, 9), "with the model that lies in it"

    # -- filters ---------------------------------------------------------------------------------------------

    def test_filters_mean_what_they_mean_everywhere(self) -> None:
        given = [*documents(), Document("bare", "no metadata")]
        with self._both(given) as (_, there):
            for filter in [*FILTERS, *TEXT_FILTERS]:
                try:
                    found = [one.key for one in there.documents(filter)]
                except FilterError:
                    assert filter in TEXT_FILTERS or "nothing" in filter, filter
                    continue
                parsed = parse_filter(filter)
                assert found == [one.key for one in given if matches(parsed, one.metadata, one.key)], filter
            with raises(FilterError):
                there.search("owl", filter={"misspelt": 1})
            there.delete([one.key for one in given[:-1]])
            with raises(FilterError):  # no document that is left has any metadata
                there.search("owl", filter={"colour": "red"})

    # -- views and writes ------------------------------------------------------------------------------------

    def test_a_write_is_whole_or_absent_and_a_view_stays_as_it_was(self) -> None:
        with self._stored(range(20)) as backend:
            before = state_of(backend)
            with raises(RuntimeError), backend.write() as writer:
                put(writer, range(20, 30))
                writer.delete(["3"])
                _fail()
            assert state_of(backend) == before
            with backend.read() as view:
                with backend.write() as writer:
                    put(writer, range(20, 25))
                    assert writer.delete(["3", "nobody", "3"]) == ["3"]
                    writer.note("name", "value")
                assert len(view) == 20
                assert view.ids(view.keys().tolist()) == [str(number) for number in range(20)]
            after = state_of(backend)
            assert set(after) == {str(number) for number in range(25)} - {"3"}
            assert all(after[id] == before[id] for id in after if id in before), "arrays stay with their documents"
            with backend.read() as view:
                assert (view.note("name"), view.note("other")) == ("value", None)
            with raises(DuplicateIdError), backend.write() as writer:
                writer.put([Document("x", "one"), Document("x", "two")], arrays_of(range(2)))
            backend.verify()

    def test_a_put_that_stops_half_way_counts_for_nothing(self) -> None:
        """Also where the caller goes on: an engine undoes that put, or drops the write with StoreError."""
        given = [Document("3", "other words", {"odd": 0}), Document("20", "new words", {"odd": 1})]
        with self._stored(range(9)) as backend:
            before, whole = state_of(backend), _Failing(arrays_of(range(2)), 1 << 30)
            with raises(RuntimeError), backend.write() as writer:
                writer.put(given, whole)
                _fail()
            for reads in sorted({0, len(SPECS), whole.read - 1}):
                with suppress(StoreError), backend.write() as writer, raises(RuntimeError):
                    writer.put(given, _Failing(arrays_of(range(2)), reads))
                with suppress(StoreError):
                    writer.delete(["5"])  # its write is over
                assert state_of(backend) == before, f"{reads} of {whole.read} arrays were read"
                backend.verify()
            with backend.write() as writer:
                writer.put(given, arrays_of(range(2)))
            with suppress(StoreError):
                writer.delete(["5"])
            assert state_of(backend).keys() == {*before, "20"}

    def test_one_writes_at_a_time(self) -> None:
        with self._stored(range(3)) as backend, closing(type(backend).open(backend.url, lock_timeout=0.1)) as other:
            with backend.write() as writer:
                put(writer, range(3, 5))
                with raises(LockedError), other.write():
                    pass
                assert set(state_of(other)) == {"0", "1", "2"}
            assert set(state_of(other)) == {"0", "1", "2", "3", "4"}

    def test_keys_and_ids(self) -> None:
        with self._stored(range(9)) as backend, backend.read() as view, backend.read({"odd": 1}) as odd:
            keys = view.keys().tolist()
            assert keys == sorted(keys)
            assert view.ids(keys[::-1]) == [str(number) for number in range(9)][::-1]
            assert {id: [*own] for id, own in view.keys_of(["4", "nobody"]).items()} == {"4": [keys[4]]}
            assert (len(odd), odd.keys().tolist(), odd.count_documents()) == (4, keys[1::2], 4)
            words, plan = "text 4 number 4", SearchPlan(Score("vector", np.ones((1, 16), np.float32)))
            best = odd.words(words, 3).keys.tolist()  # that of all, which fails the filter, sets the scale
            assert set(best) <= set(keys[1::2])
            for read in (
                odd.documents, odd.document_keys, lambda some: odd.rows("vector", some),
                lambda some: odd.words(words, 3, np.array(some)), lambda some: odd.word_parts(words, some[0]),
                lambda some: odd.candidates(plan.among(np.array(some)), 3),
            ):  # fmt: skip
                read([keys[1]])
                for outside in (keys[0], keys[4]):
                    with raises(NotFoundError):
                        read([outside])
            with backend.read({"$id": ["nobody"]}) as none, raises(NotFoundError):
                none.candidates(plan.among(np.array(keys[:1])), 3)

    # -- searches as methods describe them -------------------------------------------------------------------

    def test_plans_find_what_a_folder_finds(self) -> None:
        draw = np.random.default_rng(5)
        asked = draw.standard_normal((2, 16)).astype(np.float32)
        shares = draw.dirichlet(np.ones(8), 2).astype(np.float32)
        weights, chosen = np.array([1, 0, 2], np.float32), np.array([[0, 1, -1], [2, 3, 4]])
        scores = {
            "vector": Score("vector", asked), "half": Score("half", asked),
            "overlap": Score("shares", shares, "overlap"),
            "parts": Score("parts", asked, scales="factors", part_weights=weights),
        }  # fmt: skip
        plans = [SearchPlan(score) for score in scores.values()]
        plans += [SearchPlan(scores["vector"], Lists("lists", chosen)), SearchPlan(scores["half"], group=2)]
        plans += [SearchPlan(scores["vector"], rescore=scores["parts"], fetch=40, share=0.25)]
        with self._stored(range(200)) as backend, _folder(range(200)) as local:
            for filter in (None, {"odd": 1}):
                with backend.read(filter) as there, local.read(filter) as here:
                    for plan in [*plans, plans[0].among(there.keys()[3:30])]:
                        own = plan if plan.only is None else plan.among(here.keys()[3:30])
                        assert found(there, plan) == found(here, own)
                    assert there.list_sizes("lists").tolist() == here.list_sizes("lists").tolist()

    def test_words_find_what_a_folder_finds(self) -> None:
        with self._stored(range(200)) as backend, _folder(range(200)) as local:
            for filter in (None, {"odd": 1}):
                with backend.read(filter) as there, local.read(filter) as here:
                    for text in ("word3 of text 17", '"word3 word4"', "number", "unknown", "of the"):
                        one, other = there.words(text, 12), here.words(text, 12)
                        ids = there.ids(one.keys.tolist())
                        assert ids == here.ids(other.keys.tolist()) or not self.ties_are_ordered, text
                        assert one.scores.tolist() == other.scores.tolist(), text
                        assert list(one.document_frequencies) == list(other.document_frequencies), text
                        assert one.documents == other.documents, text
                        local_keys = here.keys_of(ids)
                        for key, id in zip(one.keys.tolist(), ids, strict=True):
                            assert (there.word_parts(text, key) == here.word_parts(text, local_keys[id][0])).all()

    # -- places ----------------------------------------------------------------------------------------------

    def test_places(self) -> None:
        url = self.new_url()
        engine = engine_of(url)
        assert not engine.exists(url)
        with raises(NotFoundError):
            engine.open(url)
        engine.create(url, SPECS, fingerprint="one", language="english", draft=True)
        with raises(NotFoundError):
            engine.open(url)
        with closing(engine.open(url, draft=True)) as draft:
            draft.publish()
        assert engine.exists(url)
        with raises(InputError):
            engine.create(url, SPECS, fingerprint="one", language="english")
        with raises(ModelMismatchError):
            engine.open(url, fingerprint="other")
        opened = engine.open(url, fingerprint="one")
        assert (opened.language, opened.arrays, opened.url) == ("english", SPECS, url)
        opened.close()
        with raises(StoreError):
            opened.stats()
        gone = self.new_url()
        engine.create(gone, SPECS, fingerprint="one", language=None, draft=True)
        with closing(engine.open(gone, draft=True)) as draft:
            draft.discard()
        assert not engine.exists(gone)
        with raises(ConfigError):
            engine.check_url(url.partition("://")[0] + "://")

    # -- helpers ---------------------------------------------------------------------------------------------

    @contextmanager
    def _both(self, given: Sequence[Document], **options: Any) -> Iterator[tuple[Index, Index]]:
        """Yield a folder and an index of the engine with the same documents."""
        model = SpaceModel.untrained(FakeEncoder(48))
        with (
            tempfile.TemporaryDirectory() as folder,
            closing(Index.create(Path(folder) / "index", model, **options)) as here,
            closing(Index.create(self.new_url(), model, **options)) as there,
        ):
            for index in (here, there):
                index.add(list(given))
            yield here, there

    @contextmanager
    def _stored(self, rows: range) -> Iterator[StorageEngine]:
        """An engine's index of numbered documents, in two writes."""
        url = self.new_url()
        engine = engine_of(url)
        engine.create(url, SPECS, fingerprint="model", language="english")
        with closing(engine.open(url)) as backend:
            _fill(backend, rows)
            yield backend


@contextmanager
def raises(kind: type[Exception]) -> Iterator[None]:
    """Fail unless an error of this kind is raised."""
    try:
        yield
    except kind:
        return
    raise AssertionError(f"no {kind.__name__} was raised")


def _fail() -> None:
    raise RuntimeError("on purpose")


class _Failing(Mapping[str, Stored]):
    """Arrays of which so many can be read."""

    def __init__(self, arrays: Mapping[str, Stored], most: int) -> None:
        self._arrays, self._most, self.read = arrays, most, 0

    def __getitem__(self, name: str) -> Stored:
        if self.read == self._most:
            _fail()
        self.read += 1
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


@contextmanager
def _folder(rows: range) -> Iterator[LocalBackend]:
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalBackend.create(Path(folder) / "index", SPECS, fingerprint="model", language="english") as backend,
    ):
        _fill(backend, rows)
        yield backend


def _fill(backend: Backend, rows: range) -> None:
    middle = (rows.start + rows.stop) // 2
    for some in (range(rows.start, middle), range(middle, rows.stop)):
        with backend.write() as writer:
            put(writer, some)


def put(writer: Any, rows: range) -> None:
    """Put numbered documents."""
    texts = (f"text {n} of word{n % 7} word{n % 5} and number {n}" for n in rows)
    writer.put([Document(str(n), text, {"odd": n % 2}) for n, text in zip(rows, texts, strict=True)], arrays_of(rows))


def arrays_of(rows: range) -> dict[str, Any]:
    """Arrays that depend on a document's number alone."""
    draws = [np.random.default_rng(n) for n in rows]
    vectors = np.array([draw.standard_normal((3, 16)) for draw in draws], np.float32)
    codes, factors = quantise(vectors)
    shares = np.array([draw.multinomial(1 << 15, np.full(8, 1 / 8)) for draw in draws], np.uint16)
    pieces = [draw.integers(-9, 9, (int(draw.integers(4)), 3)).astype(np.int8) for draw in draws]
    starts = np.cumsum([0, *map(len, pieces)]).astype(np.int64)
    return {
        "vector": vectors[:, 0].copy(), "half": vectors[:, 0].astype(np.float16),
        "parts": codes, "factors": factors,
        "lists": np.array([[n % 6] for n in rows], np.int32), "shares": shares,
        "pieces": Ragged(np.concatenate(pieces), starts),
    }  # fmt: skip


def state_of(backend: Backend) -> dict[str, tuple[Document, bytes]]:
    """All documents of an index, and the bytes of their arrays, by id."""
    with backend.read() as view:
        keys = view.keys().tolist()
        arrays = [read_array(view, spec, keys) for spec in backend.arrays]
        rows = [
            b"".join((a.row(n) if isinstance(a, Ragged) else a[n]).tobytes() for a in arrays) for n in range(len(keys))
        ]
        return {one.key: (one, row) for one, row in zip(view.documents(keys), rows, strict=True)}


def found(view: View, plan: SearchPlan) -> list[list[tuple[str, float]]]:
    """Ids and scores of the best of each row of a plan."""
    candidates = view.candidates(plan, 12)
    rows = []
    for keys, scores in zip(candidates.keys, candidates.scores, strict=True):
        real = keys >= 0
        rows.append(list(zip(view.ids(keys[real].tolist()), scores[real].tolist(), strict=True)))
    return rows
