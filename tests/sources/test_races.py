"""Files that are exchanged for others between the listing of a folder and the reading of it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from palmette import FakeEncoder, Index, SpaceModel
from palmette.data import listing
from palmette.sources.walk import MOST_RULES, walk

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes and links")
SECRET = "the secret number is 4711"
KINDS = {
    "md": "# A\n\nwords",
    "txt": "words",
    "html": "<p>words</p>",
    "jsonl": '{"id": "a", "text": "words"}\n',
    "csv": "id,text\na,words\n",
    "ipynb": '{"cells": [{"cell_type": "markdown", "source": "words"}]}',
    "py": "x = 'words'\n",
}


def link(path: Path, outside: Path) -> None:
    path.unlink()
    path.symlink_to(outside)


def pipe(path: Path, outside: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path, outside: Path) -> None:
    path.unlink()
    path.mkdir()


def link_above(path: Path, outside: Path) -> None:
    """The folder of the file becomes a link to one that has a file of its name."""
    shutil.rmtree(path.parent)
    path.parent.symlink_to(outside.parent)
    (outside.parent / path.name).write_text(SECRET)


def device(path: Path, outside: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def other(path: Path, outside: Path) -> None:
    """An ordinary file by a rename, as editors do: it is read, or waits for the next sync."""
    new = path.with_name("new.tmp")
    new.write_text(path.read_text().replace("words", "other"))
    new.replace(path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("harm", [link, pipe, folder, link_above, device, other])
def test_what_was_listed_is_read_or_nothing(
    harm: Callable[[Path, Path], None], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, outside = tmp_path / "source", tmp_path / "elsewhere" / "secret"
    (source / "sub").mkdir(parents=True)
    outside.parent.mkdir()
    outside.write_text(KINDS[kind].replace("words", SECRET))
    (source / "sub" / f"a.{kind}").write_text(KINDS[kind])
    (source / "b.md").write_text("other words")
    whole = walk

    def exchanged(*args: Any, **options: Any) -> Any:
        listed = whole(*args, **options)
        harm(source / "sub" / f"a.{kind}", outside)
        return listed

    with Index.build([], SpaceModel.untrained(FakeEncoder(16)), progress=False) as index:
        index.sync(source, "s", progress=False)
        before = sorted(document.key for document in index.documents())
        monkeypatch.setattr(listing, "walk", exchanged)
        report = index.sync(source, "s", progress=False)
        texts = "".join(document.content for document in index.documents())
        assert SECRET not in texts
        assert sorted(document.key for document in index.documents()) == before
        assert bool(report.skipped) == (harm is not other)


def test_a_long_list_of_patterns_takes_bounded_time(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("".join(f"a{n}\n" for n in range(200_000)))
    (tmp_path / "b.md").write_text("words")
    begun = time.process_time()
    walked = walk(tmp_path)
    assert time.process_time() - begun < 10
    assert [path.name for _, path in walked.files] == ["b.md"]
    assert f"{MOST_RULES:,} bytes" in str(walked.skipped)
