"""Folders are walked by their own rules, and what is skipped is named with a reason."""

import os
import time
from pathlib import Path

import pytest

from palmette.errors import ConfigError, NotFoundError
from palmette.sources.walk import file_stamps, walk


@pytest.fixture
def root(tmp_path):
    return tmp_path / "root"


def make(root: Path, *names: str, **texts: str) -> None:
    for name in (*names, *texts):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(texts.get(name, "words"), encoding="utf-8")


def read(root: Path, **options) -> list[str]:
    result = walk(root, **options)
    assert all(base == root and path.is_relative_to(root) for base, path in result.files)
    return [path.relative_to(root).as_posix() for _, path in result.files]


def reasons(root: Path, **options) -> dict[str, str]:
    return {path.relative_to(root).as_posix(): reason for path, reason in walk(root, **options).skipped}


def test_files_of_any_kind_in_the_order_of_their_names(root):
    make(root, "b.md", "a/z.py", "a/b/c.html", "Makefile", "a.rst", "notes.log")
    assert read(root) == ["Makefile", "a/b/c.html", "a/z.py", "a.rst", "b.md", "notes.log"]
    assert walk(root / "a").files == [(root / "a", root / "a/b/c.html"), (root / "a", root / "a/z.py")]
    assert walk(root / "b.md").files == [(root, root / "b.md")]


def test_what_is_skipped_and_why(root, monkeypatch):
    monkeypatch.setattr("palmette.sources.walk.MOST_BYTES", 1000)
    make(root, ".git/config", ".hidden.md", "node_modules/x/index.js", "env/pyvenv.cfg", "env/lib/a.py", "a.png")
    make(root, "package-lock.json", "app.min.js", "big.md", "kept.md")
    (root / "empty.md").write_text("")
    (root / "big.md").write_text("x" * 2000)
    os.mkfifo(root / "pipe.md")
    assert read(root) == ["kept.md"]
    assert reasons(root) == {
        ".git": "hidden",
        ".hidden.md": "hidden",
        "node_modules": "a folder of installed or generated files",
        "env": "a Python environment",
        "a.png": "no text in .png files",
        "package-lock.json": "a generated file",
        "app.min.js": "a generated file",
        "empty.md": "empty",
        "big.md": "2,000 bytes, more than 1,000",
        "pipe.md": "not a regular file",
    }
    assert read(root / "node_modules") == ["x/index.js"], "a root is read whatever its name"


def test_patterns(root):
    make(root, "a.md", "b.txt", "docs/c.md", "docs/old/d.md", "src/e.py")
    assert read(root, include=["*.md"]) == ["a.md", "docs/c.md", "docs/old/d.md"]
    assert read(root, include=["docs/**", "*.py"], exclude=["old/"]) == ["docs/c.md", "src/e.py"]
    assert reasons(root, include="*.md", exclude="docs/old")["docs/old"] == "matches an exclude pattern"
    assert reasons(root, include=["*.md"])["b.txt"] == "matches no include pattern"
    with pytest.raises(ConfigError, match="walk: include must be patterns"):
        walk(root, include=[3])  # type: ignore[list-item]
    with pytest.raises(NotFoundError, match="gone"):
        walk(root / "gone")


def test_gitignore_as_git_reads_it(root):
    make(root, "a.md", "drafts/b.md", "drafts/keep.md", "sub/a.tmp.md", "sub/deep/c.md", "other/c.md")
    (root / ".gitignore").write_text("drafts/*\n!drafts/keep.md\n*.tmp.md\n# a comment\n[broken\n")
    (root / "sub/.gitignore").write_text("/deep\n!a.tmp.md\n")
    assert read(root) == ["a.md", "drafts/keep.md", "other/c.md", "sub/a.tmp.md"]
    assert reasons(root)["sub/deep"] == "ignored by .gitignore"


def test_the_repository_above_a_root_has_its_say_unless_it_ignores_the_root(root):
    make(root, ".git/config", "docs/a.md", "docs/b.log", "build/d.md")
    (root / ".gitignore").write_text("*.log\n/build\n")
    assert read(root / "docs") == ["a.md"]
    assert read(root) == ["docs/a.md"]
    assert read(root / "build") == ["d.md"]


def test_links(root, tmp_path):
    make(tmp_path, "secret.md", "elsewhere/x.md")
    make(root, "a.md", ".data/b.md")
    for name, target in {
        "again.md": root / "a.md",
        "b.md": root / ".data/b.md",
        "secret.md": tmp_path / "secret.md",
        "gone.md": root / "nothing",
        "loop.md": root / "loop.md",
        "folder": tmp_path / "elsewhere",
        "self": root,
    }.items():
        (root / name).symlink_to(target)
    assert read(root) == ["a.md", "b.md"], "a link to a file that has no other name here"
    told = reasons(root)
    assert told["again.md"] == f"read already as {root / 'a.md'}"
    assert told["secret.md"] == f"a link out of {root}"
    assert told["folder"] == told["self"] == "a link to a folder"
    for name in ("gone.md", "loop.md"):
        assert told[name].startswith("a link that leads nowhere")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read(root):
    make(root, "a.md", "closed/b.md")
    (root / "closed").chmod(0)
    try:
        assert read(root) == ["a.md"]
        assert reasons(root)["closed"] == "permission denied"
    finally:
        (root / "closed").chmod(0o700)


@pytest.mark.parametrize("pattern", ["*a" * 12 + "b", "[!b]*" * 10 + "c", "*" * 200 + "b", "**/a/" * 8 + "b"])
def test_patterns_that_would_take_for_ever_are_left_out(root, pattern):
    make(root, "a" * 200 + ".txt", "a/" * 60 + "x.txt", "kept.md", "left.md")
    (root / ".gitignore").write_text(f"{pattern}\nleft.*\n**/of/**/it/**\n*.a*b*\n")
    begun = time.process_time()
    assert read(root) == ["a/" * 60 + "x.txt", "a" * 200 + ".txt", "kept.md"]
    assert time.process_time() - begun < 2
    assert "1 of its patterns have too many stars" in next(r for p, r in walk(root).skipped if p.name == ".gitignore")


def test_names_that_are_no_text_are_skipped(root):
    make(root, "kept.md")
    (root / os.fsdecode(b"\xff.md")).write_text("words")
    assert read(root) == ["kept.md"]
    assert "its name is no UTF-8" in [reason for _, reason in walk(root).skipped]


def test_stamps_tell_of_files_of_the_same_size_and_time(root):
    """As ``cp -p``, ``rsync -t`` and a swap of two files leave them."""
    make(root, **{"a.md": "owls", "b.md": "hens"})
    for name in ("a.md", "b.md"):
        os.utime(root / name, ns=(10**18, 10**18))
    before = file_stamps(root)
    assert file_stamps(root) == before
    (root / "a.md").rename(root / "c")
    (root / "b.md").rename(root / "a.md")
    (root / "c").rename(root / "b.md")
    swapped = file_stamps(root)
    assert all(swapped[root / name] != before[root / name] for name in ("a.md", "b.md"))
    (root / "a.md").write_text("ants")
    os.utime(root / "a.md", ns=(10**18, 10**18))
    assert file_stamps(root)[root / "a.md"] != swapped[root / "a.md"]
