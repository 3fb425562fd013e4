"""Folders of the store's tests lie in memory, where there is such a place: fsync takes no time there."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.stores import fast_place


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=fast_place()) as folder:
        yield Path(folder)
