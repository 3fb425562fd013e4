"""Approximate engines: never fewer than asked for, exact scores, filters and changes as everywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from palmette import Document, Index
from palmette.errors import ConfigError
from palmette.search import faiss_engine
from palmette.search.faiss_engine import FaissEngine, engine_named, is_engine
from palmette.search.flat import Block, top_k
from palmette.search.plan import Score, SearchPlan
from support.tiny import layers
from support.vectors import search

pytest.importorskip("faiss")

NAMES = ["ivf:nlist=40,nprobe=2", "ivf:nlist=40,nprobe=4,pq=8", "hnsw:m=8,ef=10"]


def clustered(rows: int, seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng(seed)
    centres = draw.standard_normal((40, 16))
    return (centres[draw.integers(0, 40, rows)] + 0.3 * draw.standard_normal((rows, 16))).astype(np.float32)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faiss_engine, "FEW", 50)


@pytest.mark.parametrize("name", NAMES)
def test_hits_are_as_many_as_asked_and_scored_exactly(name: str) -> None:
    data, asked = clustered(2000), clustered(30, 1)
    for k in (1, 10, 900):
        found = search(data, asked, "inner_product", k, engine_named(name))
        exact = search(data, asked, "inner_product", k, engine_named("exact"))
        assert found.approximate
        assert not exact.approximate
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


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("share", [0.02, 0.1, 0.9])
def test_rows_that_are_out_are_never_found(name: str, share: float) -> None:
    data, asked, keys = clustered(2000), clustered(20, 1), np.arange(2000)
    rows = np.flatnonzero(np.random.default_rng(3).random(2000) < share)
    found = top_k([(Block(data, keys), rows)], asked, "inner_product", 30, engine_named(name))
    assert np.isin(found.keys, rows).all()
    assert found.keys.shape == (20, 30)
    assert all(len(set(row)) == 30 for row in found.keys.tolist())


def test_an_index_follows_its_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    words = [f"word{n}" for n in range(60)]
    made = [
        Document(id=str(n), text=" ".join(draw.choice(words, 6)), metadata={"n": n % 7}) for n in range(400)
    ]
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


def test_a_fused_list_looks_where_any_layer_does() -> None:
    model = layers()
    texts = [f"the {n} owl number {n} eats {n % 13} fish and {n % 7} figs" for n in range(300)]
    index, options = Index.build(texts, model, engine="ivf:nlist=30,nprobe=1"), model.search_options({})
    queries = model.encode_queries(
        [f"how many figs does number {n} eat?" for n in range(0, 300, 10)], options
    )
    with index.backend.read() as view:
        alone = view.candidates(SearchPlan(Score("vector", queries["fused"])), 5)
        found = model.search(view, queries, 5, options)
        vectors = np.asarray(view.rows("vector", found.keys.reshape(-1).tolist())).reshape(30, 5, -1)
    np.testing.assert_allclose(found.scores, np.einsum("qd,qkd->qk", queries["fused"], vectors), atol=1e-5)
    assert (found.scores >= alone.scores - 1e-6).all()
    assert (found.scores > alone.scores + 1e-6).any()


def test_a_gpu_searches_what_it_can_and_the_cpu_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gpu:
        asked = 0

        def search(self, queries: np.ndarray, fetch: int, params: Any = None) -> Any:
            self.asked += 1
            return np.zeros((len(queries), fetch), np.float32), np.zeros((len(queries), fetch), np.int64)

    monkeypatch.setattr(faiss_engine, "_GPU_MOST", 8)
    data, gpu = clustered(400), Gpu()
    block = Block(data, np.arange(400))
    for name in ("ivf:nlist=20,nprobe=2", "faiss"):
        engine = engine_named(name)
        assert isinstance(engine, FaissEngine)
        built = engine._build(data)._replace(on_gpu=gpu)
        assert (
            engine._search(built, block, None, data[:3], 5, 2)[1].any() == np.False_
        )  # the one that is no GPU
        for rows, fetch in ((None, 10), (np.arange(90), 5)):
            found, scores = engine._search(built, block, rows, data[:3], fetch, 2)
            assert found.shape == (3, fetch)
            assert scores.any()
    assert gpu.asked == 2


def test_names_are_checked() -> None:
    assert is_engine("ivf:nprobe=3")
    assert not is_engine("qdrant")
    for name, words in (
        ("ivf:probes=3", "probes.*nprobe"),
        ("ivf:nprobe", "name=number"),
        ("ivf:nprobe=0", "at least 1"),
        ("annoy", "Engines: exact, faiss, ivf, hnsw"),
    ):
        with pytest.raises(ConfigError, match=words):
            engine_named(name)
    for rows in (300, 10):  # not only once there are so many that it counts
        data = clustered(rows)
        with pytest.raises(ConfigError, match="pq=5 does not divide"):
            search(data, data[:1], "inner_product", 3, engine_named("ivf:nlist=4,pq=5"))


def test_what_is_no_inner_product_is_exact() -> None:
    data = np.abs(clustered(500))
    data /= data.sum(1, keepdims=True)
    found, exact = (search(data, data[:5], "overlap", 9, engine_named(name)) for name in ("ivf", "exact"))
    assert np.array_equal(found.keys, exact.keys)
