"""Random histories against a dict: whatever is done, an index holds, finds and filters what the dict says."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from palmette.store.filters import matches, parse_filter
from palmette.store.local import LocalBackend
from palmette.types import Document
from support.stores import SPECS, arrays_of, delete, fast_place, plan, put, state_for, state_of

IDS = [f"d{i}" for i in range(12)]
TAGS = {"tags": st.lists(st.sampled_from("xyz"), max_size=2)}
METADATA = st.fixed_dictionaries({"n": st.integers(0, 3)}, optional=TAGS)
DOCUMENTS = st.builds(Document, st.sampled_from(IDS), st.sampled_from(["one", "two", "three"]), METADATA)
BATCHES = st.lists(DOCUMENTS, min_size=1, max_size=8, unique_by=lambda document: document.id)
FILTERS = st.sampled_from(
    [None, {"n": {"$gte": 2}}, {"n": {"$in": [0, 1]}}, {"tags": None}, {"$or": [{"n": 3}, {"tags": {"$ne": None}}]}]
)


class History(RuleBasedStateMachine):
    @initialize()
    def create(self) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=fast_place()))
        self.held: dict[str, Document] = {}
        self.backend = LocalBackend.create(self.folder / "index", SPECS, fingerprint="model")

    @rule(documents=BATCHES)
    def put(self, documents: list[Document]) -> None:
        put(self.backend, *documents)
        self._hold(documents)

    def _hold(self, documents: list[Document]) -> None:
        for document in documents:  # a replaced document moves to the end
            self.held.pop(document.key, None)
            self.held[document.key] = document

    @rule(ids=st.lists(st.sampled_from(IDS), max_size=6))
    def delete(self, ids: list[str]) -> None:
        expected = [id for id in dict.fromkeys(ids) if id in self.held]
        assert delete(self.backend, *ids) == expected
        for id in expected:
            del self.held[id]

    @rule(first=BATCHES, gone=st.lists(st.sampled_from(IDS), max_size=6), second=DOCUMENTS)
    def several(self, first: list[Document], gone: list[str], second: Document) -> None:
        """Put, delete and put again in one write."""
        with self.backend.write() as writer:
            writer.put(first, arrays_of(first))
            writer.delete([*gone, second.key])
            writer.put([second], arrays_of([second]))
        self._hold(first)
        for id in {*gone, second.key}:
            self.held.pop(id, None)
        self.held[second.key] = second

    @rule(documents=BATCHES)
    def give_up(self, documents: list[Document]) -> None:
        with pytest.raises(KeyboardInterrupt), self.backend.write() as writer:
            writer.put(documents, arrays_of(documents))
            writer.delete(IDS)
            raise KeyboardInterrupt

    @rule()
    def compact(self) -> None:
        self.backend.compact()
        stats = self.backend.stats()
        assert (stats.segments, stats.reclaimable) == (min(1, len(self.held)), 0)

    @rule()
    def reopen(self) -> None:
        self.backend.close()
        self.backend = LocalBackend.open(self.folder / "index", fingerprint="model")

    @rule(seed=st.integers(0, 9), k=st.integers(1, 15), fold=st.sampled_from([1, 2, 8]), given=FILTERS)
    def search(self, seed: int, k: int, fold: int, given: dict | None) -> None:
        queries = np.random.default_rng(seed).dirichlet(np.ones(8 // fold), size=2).astype(np.float32)
        passing = [document for document in self.held.values() if matches(given, document.metadata)]
        leaves = arrays_of(passing)["leaves"].reshape(len(passing), 8 // fold, fold)
        rows = leaves.sum(axis=2, dtype=np.float64)
        with self.backend.read(parse_filter(given)) as view:
            assert len(view) == len(passing)
            for metric in ("overlap", "inner_product"):
                found = view.candidates(plan(queries, metric, fold), k)
                for query, keys, scores in zip(queries, found.keys, found.scores, strict=True):
                    exact = (np.minimum(rows, query) if metric == "overlap" else rows * query).sum(axis=1)
                    by_id = dict(zip((document.id for document in passing), exact, strict=True))
                    np.testing.assert_allclose(scores, sorted(exact, reverse=True)[:k], atol=1e-6)
                    hits = [by_id[document.id] for document in view.documents(keys.tolist())]
                    np.testing.assert_allclose(hits, scores, atol=1e-6)

    @invariant()
    def holds_what_the_dict_says(self) -> None:
        assert state_of(self.backend) == state_for(self.held.values())
        assert [document.id for document in self.backend.scan()] == list(self.held)

    def teardown(self) -> None:
        self.backend.verify()
        self.backend.close()
        shutil.rmtree(self.folder)


TestHistory = History.TestCase
TestHistory.settings = settings(max_examples=8, stateful_step_count=20)


@pytest.mark.exhaustive
class TestManyHistories(History.TestCase):
    settings = settings(max_examples=100, stateful_step_count=30)
