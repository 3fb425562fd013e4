"""A declared tenant cannot tell two worlds apart that differ in the documents of others alone."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palmette import Document, FakeEncoder, Index, SpaceModel
from palmette.errors import ConfigError, CorruptIndexError, DuplicateIdError, FilterError, InputError, PalmetteError
from support.stores import sql

MODEL = SpaceModel.untrained(FakeEncoder(32))
D = Document


def built(*documents: Document, tenant: str | None = "t", path: Path | None = None) -> Index:
    """An index of some documents, parted by tenant."""
    return Index.build(documents, MODEL, path, tenant=tenant, progress=False)


def vault(number: int) -> list[Document]:
    """Documents of tenant b, with a secret."""
    fillers = [D(f"b{place}", f"filler {place}", {"t": "b"}) for place in range(50)]
    return [D("b", f"The code of the vault is {number}.", {"t": "b"}), *fillers]


@pytest.mark.parametrize("tenant", ["t", None])
def test_a_number_of_others_cannot_be_guessed(tenant: str | None) -> None:
    """The score of a planted guess, and its reason, told whether someone else's document has the number."""
    seen = []
    for secret in (4711, 4799):
        with built(*vault(secret), tenant=tenant) as index:
            a = index.filtered({"t": "a"})
            a.add([D("own", "an owl in the oak", {"t": "a"})])
            for guess in range(4709, 4713):
                a.upsert([D("p", f"vault {guess}", {"t": "a"})])
                hit = a.search(f"vault {guess}")[0]
                seen.append((guess, hit.score, hit.explain().text, hit.evidence))
    assert seen[:4] == seen[4:]
    assert "(1 of 2 documents)" in seen[0][2]


PLANTED: list[dict[str, Any]] = [
    {"t": "a", "": {"t": "b"}}, {"t": ["a", "b"]}, {"t": ["b", "a", "a"]}, {"t": [["a"], "b"]},
    {"": {"t": "b"}, "t": "a"},
]  # fmt: skip


@pytest.mark.parametrize("metadata", PLANTED)
@pytest.mark.parametrize("tenant", ["t", None])
def test_no_document_is_planted_in_another_view(metadata: dict[str, Any], tenant: str | None) -> None:
    with built(*vault(1), tenant=tenant) as index:
        a, b = index.filtered({"t": "a"}), index.filtered({"t": "b"})
        several = isinstance(metadata["t"], list)
        if several:
            with pytest.raises(InputError, match="2 values of 't'"):
                a.add([D("p", "planted", metadata)])
        else:
            a.add([D("p", "planted", metadata)])
        assert (len(a), len(b)) == (0 if several else 1, 51)
        assert b.get(["p"]) == [None]
        if several and tenant:
            with pytest.raises(InputError, match="2 values of 't'"):
                index.add([D("p", "planted", metadata)])


def test_an_index_of_tenants_takes_no_document_without_one() -> None:
    with built() as index:
        with pytest.raises(InputError, match="has no 't'"):
            index.add([D("p", "nobody's")])
        assert index.stats().tenant == "t"
        assert index.filtered({"t": "a"}).stats().tenant is None
    for tenant in ("", "$id", 3):
        with pytest.raises(ConfigError, match="tenant must be"):
            Index.in_memory(MODEL, tenant=tenant)  # type: ignore[arg-type]


def test_ids_are_a_tenants_own(tmp_path: Path) -> None:
    index = built(D("1", "an owl", {"t": "a"}), D("1", "a fox", {"t": "b"}), path=tmp_path / "i")
    assert [document.key for document in index.documents()] == ["a/1", "b/1"]
    assert index.add([D("2", "a cat", {"t": "a"}), D("a/3", "a hen", {"t": "a"})]) == ["a/2", "a/3"]
    a, b = index.filtered({"t": "a"}), index.filtered({"t": "b"})
    assert a.upsert([D("1", "an owl too", {"t": "a"})]).updated == ["1"]
    assert b.add([D("2", "a dog", {"t": "b"})]) == ["2"]
    with pytest.raises(DuplicateIdError, match="such as '2'"):
        b.add([D("2", "a bee", {"t": "b"})])
    assert [document and document.text for document in b.get(["1", "2", "3"])] == ["a fox", "a dog", None]
    assert {hit.id for hit in a.search("owl")} == {"1", "2", "3"}
    assert [document.text for document in a.documents({"$id": ["1", "b/1"]})] == ["an owl too"]
    assert [document.key for document in a.filtered({"$id": ["2", "3"]}).documents({"$not": {"$id": "3"}})] == ["2"]
    assert a.search("owl", 1)[0].explain().score == a.explain("owl", "1").score
    assert (a.vectors(["1"]) == index.vectors(["a/1"])).all()
    assert (a.vectors(["b/1"]) == 0).all()
    assert b.delete(["1", "3", "a/1"]) == ["1"]
    assert sorted(document.key for document in index.documents()) == ["a/1", "a/2", "a/3", "b/2"]
    again = pickle.loads(pickle.dumps(a.filtered({"$id": ["1"]})))
    assert [document.key for document in again.documents()] == ["1"]
    assert again.within == a.filtered({"$id": ["1"]}).within
    copy = a.copy_to(tmp_path / "a")
    assert [document.key for document in copy.documents()] == ["2", "3", "1"]
    whole = index.copy_to(tmp_path / "whole")
    assert (copy.backend.tenant, whole.backend.tenant) == (None, "t")
    assert len(Index.open(tmp_path / "whole").filtered({"t": "a"})) == 3
    Index.repair(tmp_path / "whole", tmp_path / "saved")
    assert len(Index.open(tmp_path / "saved").filtered({"t": "b"}).get(["2"])) == 1


@pytest.mark.parametrize("values", [("a", "a/"), ("1", 1), ("a%2F", "a/"), ("#1", 1), ("", 0)])
def test_no_two_tenants_share_a_prefix(values: tuple[Any, Any]) -> None:
    ids = ["x", "/x", "a/x", "1/x"]
    documents = [D(id, f"text {id}", {"t": value}) for value in values for id in ids]
    with built() as index:
        for value in values:
            own = [document for document in documents if document.metadata["t"] is value]
            index.filtered({"t": value}).add(own)
        assert len(index) == 8
        for value in values:
            view = index.filtered({"t": value})
            assert [document and document.metadata["t"] for document in view.get(ids)] == [value] * 4


@pytest.mark.parametrize("value", [True, 1.0, -0.0, float(2**53), 1.5])
def test_values_that_equal_others_name_no_tenant(value: Any) -> None:
    """A filter by 1 passes True, too: their documents would be one tenant's. A filter by True is one by 1."""
    with built(D("x", "one", {"t": 1})) as index:
        for use in (
            lambda: index.filtered({"t": 1.5 if value is True else value}),
            lambda: index.add([D("y", "other", {"t": value})]),
            lambda: index.filtered({"t": int(value)}).add([D("y", "other", {"t": value})]),
        ):
            with pytest.raises(InputError, match=r"a tenant is named by a text or a whole number|does not pass"):
                use()
        assert index.stats().documents == 1
        assert len(index.filtered({"t": 1}).get(["x"])) == 1


@pytest.mark.parametrize("tenant", ["t", None])
def test_an_unknown_name_does_not_tell_of_others(tenant: str | None) -> None:
    told = []
    for name in ("salary", "nothing"):
        with built(
            *vault(1), D("s", "pay", {"t": "b", "salary": 3}), D("a", "pay", {"t": "a"}), tenant=tenant
        ) as index:
            a = index.filtered({"t": "a"})
            searches: list[Callable[[], Any]] = [
                lambda a=a, name=name: a.filtered({name: 3}).search("pay"),
                lambda a=a, name=name: a.search("pay", filter={name: 3}),
                lambda a=a, name=name: a.filtered({"t": "a"}).filtered({name: 3}).search("pay", filter={"t": "a"}),
                lambda a=a, name=name: list(a.documents({name: 3})),
            ]
            if tenant:
                searches.append(lambda index=index, name=name: len(index.filtered({"t": "a", name: 3})))
            for search in searches:
                with pytest.raises(FilterError) as error:
                    search()
                told.append(str(error.value).replace(name, "…"))
    assert told[: len(told) // 2] == told[len(told) // 2 :]


@pytest.mark.parametrize("tenant", ["t", None])
def test_damage_of_others_is_not_named(tmp_path: Path, tenant: str | None) -> None:
    index = built(*vault(1), D("a", "an owl", {"t": "a"}), path=tmp_path / "i", tenant=tenant)
    sql(tmp_path / "i", "UPDATE documents SET text = 'other' WHERE metadata LIKE '%\"b\"%'")
    a, b = index.filtered({"t": "a"}), index.filtered({"t": "b"})
    a.verify()
    assert a.get(["b", "b1", "b/b1"]) == [None, None, None]
    for read in (index.verify, b.verify, lambda: b.get(["b1"])):
        with pytest.raises(CorruptIndexError, match="is damaged"):
            read()
    index.close()


def test_units_behind_a_wall_change_when_its_own_documents_do() -> None:
    """They are measured on the first documents, and depend neither on others nor on the search that comes first."""
    pairs = product(("red", "blue", "green", "white"), ("owl", "fox", "hen", "cat", "bee"))
    texts = [f"the {colour} {animal} lives in house {place}" for place, (colour, animal) in enumerate(pairs)]
    own = [D(str(place), text, {"t": "a", "n": place}) for place, text in enumerate(texts)]
    scores = []
    for first in (None, {"n": {"$lt": 3}}):
        with built(*own[:16]) as index:
            a = index.filtered({"t": "a"})
            a.search("red owl", filter=first)
            index.add(vault(7))
            scores.append([hit.score for hit in a.search("red owl")])
            before = a.explain("red owl", "0", lexical=0).parts
            index.add(own[16:17])
            assert [part.value for part in a.explain("red owl", "0", lexical=0).parts][1:] == [
                part.value for part in before
            ][1:], "one more document of seventeen"
            index.add(own[17:])
            assert a.explain("red owl", "0", lexical=0).parts[1] != before[1]
    assert scores[0] == scores[1]


def test_a_copy_of_a_view_knows_nothing_of_others(tmp_path: Path) -> None:
    scores = []
    for number, others in enumerate(([], vault(4711))):
        with built(*others, *(D(str(n), f"an owl in house {n}", {"t": "a"}) for n in range(6))) as index:
            copy = index.filtered({"t": "a"}).copy_to(tmp_path / str(number))
            scores.append([(hit.id, hit.score, hit.explain().text) for hit in copy.search("owl house 4711")])
            copy.close()
    assert scores[0] == scores[1]


# -- worlds -------------------------------------------------------------------------------------------------

WORDS = "owl fox hen cat vault code 4711 4712 red blue oak zanzibar the of is".split()
OWN = [
    D("1", "The red owl sleeps in the oak. It wakes at night.", {"t": "a", "lang": "en", "year": 2001}),
    D("2", "A blue fox and the code of the vault.", {"t": "a", "lang": "en"}),
    D("3", "Zanzibar has 4711 owls.", {"t": "a", "lang": "de", "year": 1999}),
    D("4", "The hen, the cat and 4711 foxes.", {"t": "a", "tags": ["x", "y"]}),
]
LATER = [D("5", "One more red hen sleeps.", {"t": "a", "lang": "en"}), D("2", "A blue fox, changed.", {"t": "a"})]
QUERIES = ["red owl 4711", "code of the vault 4712", '"blue fox"', "zanzibar", "is the of"]


def foreign(draw: np.random.Generator) -> Document:
    """A document of another tenant, some with ids, names and words of the observer's."""
    text = " ".join(draw.choice(WORDS, draw.integers(1, 12)).tolist())
    metadata: dict[str, Any] = {"t": str(draw.choice(["b", "c", "a/", "aa"]))}
    for name in draw.choice(["lang", "salary", "secret", "a", ""], draw.integers(0, 3), replace=False).tolist():
        metadata[name] = draw.choice([1, 2001]).item() if draw.random() < 0.7 else {"t": "a"}
    return D(str(draw.integers(1, 9 if draw.random() < 0.5 else 999)), text, metadata)


def told(act: Callable[[], Any]) -> Any:
    """Result of a call, or its error."""
    try:
        return act()
    except PalmetteError as error:
        return type(error).__name__, str(error)


def observe(a: Index) -> list[Any]:
    """All that a tenant can learn."""
    filters = [None, {"lang": "en"}, {"salary": 1}, {"$id": ["1", "3", "b/1"]}, {"year": {"$gte": 2000}}, {"tags": "x"}]
    seen: list[Any] = [len(a), a.stats().documents, told(a.verify), told(a.compact)]
    for query in QUERIES:
        for hit in told(lambda query=query: a.search(query, explain=True)):
            seen += [hit.id, hit.score, hit.evidence, hit.explain().to_dict(), hit.highlights, hit.document]
        seen.append(told(lambda query=query: a.explain(query, "3").to_dict()))
    for filter in filters:
        hits = told(
            lambda filter=filter: [(h.id, h.score) for h in a.search("red owl 4711", 2, filter=filter, lexical=0.9)]
        )
        inner = told(lambda filter=filter: a.filtered(filter).rank(["the red hen"]))
        seen += [hits, inner, told(lambda filter=filter: list(a.documents(filter)))]
    ids = [str(number) for number in range(9)] + ["b/1", "a/1"]
    seen += [a.get(ids), a.vectors(ids).tolist(), told(lambda: a.explain("owl", "7"))]
    seen += [told(lambda: a.delete(["6", "7", "b/1"])), told(lambda: a.add([OWN[0], D("3", "other", {"t": "a"})]))]
    return seen


def world(draw: np.random.Generator, others: int, place: str | Path | None) -> list[Any]:
    """What tenant a learns in a world where others write between its own writes."""
    with Index.build([], MODEL, place, tenant="t", progress=False) as index:
        a, seen = index.filtered({"t": "a"}), list[Any]()
        for own in (OWN[:1], OWN[1:3], OWN[3:], LATER):
            written = [foreign(draw) for _ in range(int(draw.integers(0, others + 1)))]
            whole = {(document.metadata["t"], document.key): document for document in written[::2]}
            index.upsert(list(whole.values()), progress=False)
            for tenant in sorted({document.metadata["t"] for document in written[1::2]}):
                own_ids = {document.key: document for document in written[1::2] if document.metadata["t"] == tenant}
                index.filtered({"t": tenant}).upsert(list(own_ids.values()), progress=False)
            if others and draw.random() < 0.3:
                index.delete(filter={"t": {"$ne": "a"}}) if len(index) > len(a) else index.compact()
            seen.append(a.upsert(own, progress=False))
            seen.append(a.search("owl", 1))
        return [*seen, *observe(a)]


def plain(seen: list[Any]) -> list[str]:
    """Comparable form, to the bit."""
    return [repr(one) for one in seen]


PARTS = [
    pytest.param(range(first, min(first + 100, 2000)), marks=pytest.mark.exhaustive) for first in range(12, 2000, 100)
]
WORLDS = [pytest.param(range(12)), *PARTS]


@pytest.mark.parametrize("seeds", WORLDS)
def test_two_worlds_of_others_cannot_be_told_apart(seeds: range) -> None:
    alone = plain(world(np.random.default_rng(0), 0, None))
    for seed in seeds:
        seen = plain(world(np.random.default_rng(seed), 12 if seed % 4 else 120, None))
        differing = [pair for pair in zip(alone, seen, strict=True) if pair[0] != pair[1]]
        assert not differing, (seed, differing[0])


def test_nor_in_a_folder_or_a_collection(tmp_path: Path) -> None:
    pytest.importorskip("qdrant_client")
    for place in (f"{tmp_path}/i", f"qdrant+local://{tmp_path}/q/docs"):
        alone = plain(world(np.random.default_rng(0), 0, place))
        for seed in range(3):
            shutil.rmtree(tmp_path / "i", ignore_errors=True)
            shutil.rmtree(tmp_path / "q", ignore_errors=True)
            assert plain(world(np.random.default_rng(seed), 8, place)) == alone, seed
