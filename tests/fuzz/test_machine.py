"""Random histories of an index against a dictionary: what was acknowledged is there, and nothing else.

A failure prints the steps and the seed; ``make soak SEED=N`` repeats a run.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from palmette import Document, FakeEncoder, Index, SpaceModel
from palmette.errors import CorruptIndexError, DuplicateIdError, PalmetteError
from palmette.ranking.arrays import stored_arrays
from palmette.store.filters import matches
from palmette.store.local.database import DATABASE, connect
from support.forks import ended, forked
from support.odd import LIMITS
from support.stores import fast_place, state_for, state_of

IDS = [f"d{number}" for number in range(9)]
DOCUMENTS = st.builds(
    Document,
    st.sampled_from(IDS),
    st.sampled_from(["red fox", "blue owl. It sings", "a red owl", "the fox and the owl"]),
    st.fixed_dictionaries({"n": st.integers(0, 2), "tenant": st.sampled_from("ab")}),
)
BATCHES = st.lists(DOCUMENTS, min_size=1, max_size=5, unique_by=lambda document: document.id)
GONE = st.lists(st.sampled_from(IDS), max_size=4)
FILTERS = st.sampled_from([None, {"n": 1}, {"n": {"$gte": 1}}, {"$not": {"tenant": "a"}}, {"$id": IDS[:4]}])
MODEL = SpaceModel.untrained(FakeEncoder(16))
CALLS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "sqlite3.connect"}
"""Audited calls at which a writer is killed."""


def arrays_of(documents: Sequence[Document]) -> dict[str, Any]:
    return stored_arrays(MODEL, documents, True)


def write_and_die(index: Index, documents: list[Document], last: int) -> None:
    """Write, in a child that is killed at its call number ``last``, unless it has finished before."""
    made = 0

    def count(event: str, _: object) -> None:
        nonlocal made
        made += event in CALLS
        if event in CALLS and made == last:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    index.upsert(documents, progress=False)
    os._exit(0)


class History(RuleBasedStateMachine):
    """An index in a folder, and what it must hold."""

    @initialize()
    def create(self) -> None:
        self.root = Path(tempfile.mkdtemp(dir=fast_place()))
        self.held: dict[str, Document] = {}
        self.index = Index.create(self.root / "index", MODEL)

    def reopened(self) -> Index:
        return Index.open(self.root / "index", MODEL)

    def hold(self, documents: list[Document]) -> None:
        for document in documents:
            if self.held.get(document.key) != document:  # a replaced document moves to the end
                self.held.pop(document.key, None)
                self.held[document.key] = document

    @rule(documents=BATCHES, gone=GONE)
    def upsert(self, documents: list[Document], gone: list[str]) -> None:
        given = {document.key for document in documents}
        done = self.index.upsert(documents, delete=gone, progress=False)
        assert set(done.added) == given - self.held.keys()
        assert set(done.deleted) == {id for id in gone if id in self.held and id not in given}
        for id in done.deleted:
            del self.held[id]
        self.hold(documents)

    @rule(documents=BATCHES)
    def add(self, documents: list[Document]) -> None:
        changed = [d for d in documents if self.held.get(d.key, d) != d]
        try:
            self.index.add(documents, progress=False)
        except DuplicateIdError:
            assert changed
        else:
            assert not changed
            self.hold(documents)

    @rule(ids=GONE)
    def delete(self, ids: list[str]) -> None:
        assert set(self.index.delete(ids)) == self.held.keys() & set(ids)
        self.held = {id: one for id, one in self.held.items() if id not in ids}

    @rule(filter=FILTERS)
    def delete_by_filter(self, filter: Any) -> None:
        if filter is None:
            return
        expected = self.passing(filter)
        assert sorted(self.index.delete(filter=filter)) == expected if self.knows(filter) else True
        self.held = {id: one for id, one in self.held.items() if id not in expected}

    @rule(documents=BATCHES, ids=GONE)
    def through_a_tenants_view(self, documents: list[Document], ids: list[str]) -> None:
        """A tenant changes its own documents, and is refused whole where one is not its own."""
        if not self.knows({"tenant": "a"}):
            return
        view = self.index.filtered({"tenant": "a"})
        own = all(d.metadata["tenant"] == "a" for d in documents)
        own = own and all(self.held[d.key].metadata["tenant"] == "a" for d in documents if d.key in self.held)
        try:
            view.upsert(documents, progress=False)
        except PalmetteError:
            assert not own
        else:
            assert own
            self.hold(documents)
        gone = view.delete(ids)
        assert all(self.held.pop(id).metadata["tenant"] == "a" for id in gone)
        assert not [id for id in ids if id in self.held and self.held[id].metadata["tenant"] == "a"]

    @rule(first=BATCHES, gone=GONE, second=DOCUMENTS)
    def several(self, first: list[Document], gone: list[str], second: Document) -> None:
        """Put, delete and put again in one write."""
        gone = [*gone, second.key]
        with self.index.backend.write() as writer:
            writer.put(first, arrays_of(first))
            writer.delete(gone)
            writer.put([second], arrays_of([second]))
        for id in {*gone, *(document.key for document in first)}:
            self.held.pop(id, None)
        self.hold([*(document for document in first if document.key not in gone), second])

    @rule(documents=BATCHES)
    def give_up(self, documents: list[Document]) -> None:
        with pytest.raises(KeyboardInterrupt), self.index.backend.write() as writer:
            writer.put(documents, arrays_of(documents))
            writer.delete(IDS)
            raise KeyboardInterrupt

    @rule(documents=BATCHES, step=st.integers(1, 60))
    def kill(self, documents: list[Document], step: int) -> None:
        """A child writes, and is killed at one of its calls of the system: all of it, or nothing."""
        [status] = ended(forked(lambda _: write_and_die(self.index, documents, step)))
        assert status in (0, -signal.SIGKILL)
        after = self.held | {document.key: document for document in documents}
        found = {document.key: document for document in self.index.documents()}
        assert found == after or (found == self.held and status != 0)
        self.held = found

    @rule()
    def compact(self) -> None:
        self.index.compact()
        stats = self.index.stats()
        assert (stats.segments, stats.reclaimable) == (min(1, len(self.held)), 0)

    @rule()
    def reopen(self) -> None:
        self.index.close()
        self.index = self.reopened()

    @rule()
    def copy(self) -> None:
        with self.index.copy_to(self.root / "copy") as made:
            assert {d.key: d for d in made.documents()} == self.held
        shutil.rmtree(self.root / "copy")

    @rule()
    def back_up(self) -> None:
        """A backup, and what is restored from it, hold the same."""
        self.index.backup(self.root / "backup")
        with Index.restore(self.root / "backup", self.root / "restored") as restored:
            assert {d.key: d for d in restored.documents()} == self.held
        for name in ("backup", "restored"):
            shutil.rmtree(self.root / name)

    @rule(choice=st.randoms(use_true_random=False), repairs=st.booleans())
    def damage(self, choice: Any, repairs: bool) -> None:
        """One byte of an array changes: the next opening says so; repaired or put right, nothing is lost."""
        folder = Path(self.index.path)
        with closing(connect(folder / DATABASE, "mode=rw")) as database:  # other folders are what a killed child left
            names = [name for (name,) in database.execute("SELECT name FROM segments ORDER BY position")]
        arrays = [path for name in names for path in sorted((folder / "segments" / name).glob("*.npy"))]
        if not arrays:
            return
        path = choice.choice(arrays)
        whole = path.read_bytes()
        at = choice.randrange(len(whole))
        self.index.close()
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << choice.randrange(8))]) + whole[at + 1 :])
        with pytest.raises(CorruptIndexError, match=path.name):
            self.reopened()
        if repairs:
            report = Index.repair(self.root / "index", self.root / "repaired", MODEL, progress=False)
            assert not report.lost
            shutil.rmtree(self.root / "index")
            (self.root / "repaired").rename(self.root / "index")
        else:
            path.write_bytes(whole)
        self.index = self.reopened()

    @rule(filter=FILTERS, k=st.integers(1, 12), lexical=st.sampled_from([0, 0.5, 1]))
    def search(self, filter: Any, k: int, lexical: float) -> None:
        if not self.knows(filter):
            return
        hits = self.index.search("red fox", k, filter=filter, lexical=lexical)
        expected = self.passing(filter)
        assert {hit.id for hit in hits} <= set(expected)
        assert len(hits) == min(k, len(expected)) or lexical == 1
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        assert all(hit.document == self.held[hit.id] for hit in hits)
        for hit in hits:
            assert hit.explain().score == pytest.approx(hit.score, abs=1e-5)

    def knows(self, filter: Any) -> bool:
        """A filter by a name that no document has is refused."""
        return filter is None or "$id" in filter or bool(self.held)

    def passing(self, filter: Any) -> list[str]:
        return sorted(id for id, one in self.held.items() if matches(filter, one.metadata, id))

    @invariant()
    def holds_what_was_acknowledged(self) -> None:
        assert state_of(self.index.backend) == state_for(self.held.values(), arrays_of)
        assert [document.key for document in self.index.documents()] == list(self.held)
        assert self.index.get(IDS) == [self.held.get(id) for id in IDS]
        assert len(self.index) == len(self.held)

    def teardown(self) -> None:
        self.index.verify()
        self.index.close()
        shutil.rmtree(self.root)


TestHistory = History.TestCase
TestHistory.settings = settings(LIMITS, max_examples=10, stateful_step_count=12)


@pytest.mark.exhaustive
class TestSoak(History.TestCase):
    """Histories that ``make soak`` draws from its seeds."""

    settings = settings(LIMITS, max_examples=10, stateful_step_count=40, derandomize=False)
