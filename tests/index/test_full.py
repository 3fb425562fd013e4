"""A disk that is full: what raises was not written, and what was written does not raise."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from palmette import Document, FakeEncoder, Index, SpaceModel
from palmette.errors import StorageFullError

MODEL = SpaceModel.untrained(FakeEncoder(16))
MANY = [Document(f"fox{number}", f"the fox number {number} sings") for number in range(6)]


@pytest.mark.parametrize("room", [0, 1])
def test_room_for_so_many_commits(room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An upsert commits the documents, then a note of their units; without room for the second it warns."""
    folder, flush = tmp_path / "index", os.fsync

    def refuse(descriptor: int) -> None:
        if json.loads((folder / "commit.json").read_text())["generation"] >= room:
            raise OSError(errno.ENOSPC, "full")
        flush(descriptor)

    with Index.create(folder, MODEL) as index, monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        if room:
            with pytest.warns(UserWarning, match="the documents are written.*the next write tries again"):
                changes = index.upsert(MANY, progress=False)
            assert len(changes.added) == len(index) == 6
            assert index.search("fox number 3", 1)[0].id == "fox3"
        else:
            with pytest.raises(StorageFullError, match="the index is as it was"):
                index.upsert(MANY, progress=False)
            assert len(index) == 0
        patch.undo()
        index.upsert([*MANY, Document("owl", "an owl")], progress=False)
    with Index.open(folder, verify="full") as index, index.backend.read() as view:
        assert len(index) == 7
        assert view.note("score_scales")
