"""Approximate engines: never fewer than asked for, exact scores, filters and changes as everywhere."""

from __future__ import annotations

import numpy as np
import pytest

from palmette import Document, Index
from palmette.search import faiss_engine
from palmette.search.faiss_engine import FaissEngine, engine_named
from palmette.search.flat import Block, ExactEngine, top_k
from support.tiny import layers
from support.vectors import search

pytest.importorskip("faiss")


def clustered(rows: int, seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng(seed)
    centres = draw.standard_normal((40, 16))
    return (centres[draw.integers(0, 40, rows)] + 0.3 * draw.standard_normal((rows, 16))).astype(np.float32)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faiss_engine, "EXACT_UP_TO", 50)


@pytest.fixture(scope="module")
def built() -> tuple[Block, ExactEngine]:
    """A block and an engine, which trains at its first search."""
    return Block(clustered(2000), np.arange(2000)), engine_named("ivf:nlist=40,nprobe=2")


def test_hits_are_as_many_as_asked_and_scored_exactly(built: tuple[Block, ExactEngine]) -> None:
    block, engine = built
    data, asked = clustered(2000), clustered(30, 1)
    for k in (1, 10, 900):
        found = top_k([(block, None)], asked, "inner_product", k, engine)
        exact = search(data, asked, "inner_product", k, engine_named("exact"))
        assert found.keys.shape == (30, k)
        assert all(len(set(row)) == k and -1 not in row for row in found.keys.tolist())
        expected = np.einsum("qd,qkd->qk", asked, data[found.keys])
        np.testing.assert_allclose(found.scores, expected, rtol=1e-4, atol=1e-4)
        assert (np.diff(found.scores, axis=1) <= 0).all()
        common = np.mean([len(set(a) & set(b)) / k for a, b in zip(found.keys, exact.keys, strict=True)])
        assert common > 0.4


def test_more_probes_find_more_and_all_find_all() -> None:
    data, asked = clustered(2000), clustered(50, 1)
    exact = search(data, asked, "inner_product", 10, engine_named("exact"))
    recall, visited = [], []
    for probes in (1, 4, 40):
        found = search(data, asked, "inner_product", 10, engine_named(f"ivf:nlist=40,nprobe={probes}"))
        same = [len(set(a) & set(b)) for a, b in zip(found.keys, exact.keys, strict=True)]
        recall.append(np.mean(same) / 10)
        visited.append(found.visited)
    assert recall[0] < recall[1] < recall[2] == 1
    assert visited[0] < visited[1] < visited[2] == 2000


def test_equal_scores_go_by_key() -> None:
    data = clustered(400)
    data[100] *= 3
    data[300] = data[200] = data[100]
    found = search(data, data[100:101], "inner_product", 5, engine_named("ivf:nlist=4,nprobe=2"))
    assert found.keys[0, :3].tolist() == [100, 200, 300]


@pytest.mark.parametrize("share", [0.02, 0.1, 0.9])
def test_rows_that_are_out_are_never_found(built: tuple[Block, ExactEngine], share: float) -> None:
    block, engine = built
    asked = clustered(20, 1)
    rows = np.flatnonzero(np.random.default_rng(3).random(2000) < share)
    found = top_k([(block, rows)], asked, "inner_product", 30, engine)
    assert np.isin(found.keys, rows).all()
    assert found.keys.shape == (20, 30)
    assert all(len(set(row)) == 30 for row in found.keys.tolist())


def test_an_index_follows_its_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    words = [f"word{n}" for n in range(60)]
    made = [Document(id=str(n), text=" ".join(draw.choice(words, 6)), metadata={"n": n % 7}) for n in range(400)]
    index = Index.in_memory(layers(), engine="ivf:nlist=8,nprobe=2")
    assert index.engine == "ivf:nlist=8,nprobe=2"
    index.add(made[:300])
    question = made[7].text
    assert "7" in [hit.id for hit in index.search(question, k=100, lexical=0)]
    index.add(made[300:])
    assert "390" in [hit.id for hit in index.search(made[390].text, k=100, lexical=0)]
    index.delete(["7"])
    found = [hit.id for hit in index.search(question, k=393, lexical=0)]
    assert len(set(found)) == 393
    assert "7" not in found
    some = index.search(question, k=20, filter={"n": 3}, lexical=0, order="layer")
    assert len(some) == 20
    assert {hit.document.metadata["n"] for hit in some} == {3}
    index.compact()
    assert len(index.search(question, k=30, lexical=0)) == 30
    built: list[int] = []
    monkeypatch.setattr(FaissEngine, "_build", lambda self, data: built.append(len(data)))
    for _ in range(3):
        index.search(question, k=5, lexical=0)
    assert built == []  # built when it was first searched, and kept
