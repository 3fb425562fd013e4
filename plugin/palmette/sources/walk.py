"""List the files of folders that are worth reading, and say of each other one why it is not."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palmette.config import check_path
from palmette.errors import ConfigError, NotFoundError, shown
from palmette.machine.files import open_source
from palmette.machine.text import is_unicode
from palmette.sources.kinds import kind_of

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

MOST_BYTES = 2**26
"""Bytes of a file at most."""
FOLDERS = frozenset(
    "node_modules bower_components jspm_packages __pycache__ site-packages venv virtualenv __pypackages__ "
    "CVS _darcs".split()
)
"""Folders that hold other people's files, or what programs made."""
GENERATED_FILES = (
    "package-lock.json npm-shrinkwrap.json yarn.lock pnpm-lock.yaml poetry.lock uv.lock pdm.lock Pipfile.lock "
    "Cargo.lock composer.lock Gemfile.lock go.sum flake.lock *.min.js *.min.css *.map *.egg-info/ *.dist-info/"
).split()
"""Files that programs made, as patterns."""
MOST_RULES = 2**16
"""Bytes of a ``.gitignore`` that are read: every file is compared with every pattern."""
MOST_STARS = 3
"""Stars in one part of a path that a pattern of a ``.gitignore`` may have: matching time is to the power of them."""
MOST_DOUBLE_STARS = 2
"""Parts ``**`` of such a pattern, one at its end aside."""
_ENVIRONMENT = "pyvenv.cfg"
"""File at the head of a Python environment, whatever the folder's name."""


@dataclass(frozen=True)
class Walk:
    """Files to read, each with the root that it was found below, and what was skipped."""

    files: list[tuple[Path, Path]] = field(default_factory=list)
    """(root, path): the path begins with its root; that of a file which is itself a root is its folder."""
    skipped: list[tuple[Path, str]] = field(default_factory=list)
    """(path, reason); a folder that is skipped is named once, without what is in it."""
    unreadable: list[Path] = field(default_factory=list)
    """Skipped files and folders that the system could not read: what lies there may be as before."""


def walk(root: str | Path, *, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> Walk:
    """List the files below a folder, in the order of their names; or one file.

    Left out are what ``.gitignore`` files say, also those above the root in its repository; hidden files and folders;
    folders such as ``node_modules`` and Python environments; lock files and other generated ones; files without text;
    empty and large ones. Links to folders are not followed, nor links that lead out of the root. The root is read
    whatever its name is.

    Args:
        root: A folder, or a file.
        include: Patterns as in ``.gitignore``, relative to the root; where there are any, other files are left out.
        exclude: Patterns of files and folders to leave out.

    Raises:
        NotFoundError: The root does not exist.
    """
    path = check_path(root)
    if not path.exists():
        raise NotFoundError(f"there is no file or folder {str(root)!r}")
    is_folder = path.is_dir()
    walker = _Walker(path if is_folder else path.parent, _patterns("include", include), _patterns("exclude", exclude))
    if is_folder:
        walker.folder(path)
        walker.take_links()
    else:
        walker.take(path, path.stat(), forced=True)
    return walker.result


def file_stamps(
    root: str | Path, *, include: Sequence[str] = (), exclude: Sequence[str] = ()
) -> dict[Path, tuple[int, ...]]:
    """Return what tells that a file was changed or replaced, for all that would be read.

    ``cp -p``, ``rsync -t`` and a swap of two files keep time and size, but neither inode nor time of change. On Windows
    the latter is the time of creation, and the inode may be 0: time and size are left then.
    """
    stamps: dict[Path, tuple[int, ...]] = {}
    for _, path in walk(root, include=include, exclude=exclude).files:
        with suppress(OSError):  # it went away
            status = path.stat()
            stamps[path] = status.st_ino, status.st_ctime_ns, status.st_mtime_ns, status.st_size
    return stamps


def _patterns(name: str, patterns: Sequence[str]) -> GitIgnoreSpec | None:
    from pathspec import GitIgnoreSpec

    if isinstance(patterns, str):
        patterns = [patterns]
    try:
        return GitIgnoreSpec.from_lines(patterns) if patterns else None
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"walk: {name} must be patterns as in .gitignore, got {shown(patterns)}: {error}") from error


class _Walker:
    """The walk below one root."""

    def __init__(self, root: Path, include: GitIgnoreSpec | None, exclude: GitIgnoreSpec | None) -> None:
        self.root, self.include, self.exclude = root, include, exclude
        self.result, self.listed = Walk(), dict[tuple[int, int], Path]()  # listed: path by device and inode
        self.links: list[Path] = []
        self.generated = _patterns("generated", GENERATED_FILES)

    def folder(self, folder: Path) -> None:
        """List the files below a folder, depth first."""
        waiting = [(folder, _ignores_above(folder))]
        while waiting:
            folder, ignores = waiting.pop()
            try:
                with os.scandir(folder) as scan:
                    entries = sorted(scan, key=lambda entry: entry.name)
            except OSError as error:
                self.skip(folder, _reason(error))
                self.result.unreadable.append(folder)
                continue
            if folder != self.root and any(entry.name == _ENVIRONMENT for entry in entries):
                self.skip(folder, "a Python environment")
                continue
            ignores = (*ignores, *_ignores_of(folder, self.skip))
            below = []
            for entry in entries:
                path = folder / entry.name
                if reason := self.unwanted(path, entry, ignores):
                    self.skip(path, reason)
                elif entry.is_dir(follow_symlinks=False):
                    below.append((path, ignores))
                elif entry.is_symlink():
                    self.links.append(path)
                else:
                    self.look_at(path)
            waiting.extend(reversed(below))

    def unwanted(self, path: Path, entry: os.DirEntry[str], ignores: Sequence[_Ignores]) -> str:
        """Return why an entry of a folder is not looked at; nothing where it is."""
        folder = entry.is_dir(follow_symlinks=False)
        inside = path.relative_to(self.root).as_posix() + "/" * folder
        if self.exclude and self.exclude.match_file(inside):
            return "matches an exclude pattern"
        if folder and entry.name in FOLDERS:
            return "a folder of installed or generated files"
        if entry.name.startswith("."):
            return "hidden"
        if not is_unicode(entry.name):
            return "its name is no UTF-8"
        if _ignored(path, folder, ignores):
            return "ignored by .gitignore"
        if self.generated and self.generated.match_file(inside):
            return "a generated file"
        if not folder and self.include and not self.include.match_file(inside):
            return "matches no include pattern"
        return ""

    def look_at(self, path: Path) -> None:
        """Take a file in, or skip it."""
        try:
            self.take(path, path.stat())
        except OSError as error:
            self.skip(path, _reason(error))
            self.result.unreadable.append(path)

    def take(self, path: Path, status: os.stat_result, *, forced: bool = False) -> None:
        """Take a file in, unless its kind or its size speaks against it."""
        if not stat.S_ISREG(status.st_mode):
            self.skip(path, "not a regular file")
        elif kind_of(path) is None and not forced:
            self.skip(path, f"no text in {path.suffix.lower()} files")
        elif status.st_size == 0:
            self.skip(path, "empty")
        elif status.st_size > MOST_BYTES:
            self.skip(path, f"{status.st_size:,} bytes, more than {MOST_BYTES:,}")
        else:
            self.listed.setdefault((status.st_dev, status.st_ino), path)
            self.result.files.append((self.root, path))

    def take_links(self) -> None:
        """Take in the links to files inside the root that were not listed by their own names."""
        real = self.root.resolve()
        for path in self.links:
            try:
                target = path.resolve(strict=True)
                status = target.stat()
            except (OSError, RuntimeError) as error:
                self.skip(path, f"a link that leads nowhere ({_reason(error)})")
                continue
            if stat.S_ISDIR(status.st_mode):
                self.skip(path, "a link to a folder")
            elif not target.is_relative_to(real):
                self.skip(path, f"a link out of {self.root}")
            elif (status.st_dev, status.st_ino) in self.listed:
                self.skip(path, f"read already as {self.listed[status.st_dev, status.st_ino]}")
            else:
                self.look_at(path)
        self.result.files.sort()

    def skip(self, path: Path, reason: str) -> None:
        """Name a path that is not read."""
        self.result.skipped.append((path, reason))


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).lower()


@dataclass(frozen=True)
class _Ignores:
    """The patterns of one ``.gitignore`` and the folder that they are relative to."""

    folder: Path
    patterns: GitIgnoreSpec


def _ignores_of(folder: Path, skip: Callable[[Path, str], None] | None = None) -> tuple[_Ignores, ...]:
    """Return the patterns that a folder adds, without lines that Git would not understand or that take too long."""
    from pathspec import GitIgnoreSpec

    file = folder / ".gitignore"
    try:
        if not file.is_file():
            return ()
        with open_source(file) as content:
            data = content.read(MOST_RULES + 1)
    except OSError:
        return ()
    if skip is not None and len(data) > MOST_RULES:
        skip(file, f"its patterns end at {MOST_RULES:,} bytes, and further ones were left out")
    lines = data[:MOST_RULES].decode("utf-8", "replace").splitlines()
    bounded = [line for line in lines if _is_bounded(line)]
    if skip is not None and len(bounded) < len(lines):
        skip(file, f"{len(lines) - len(bounded):,} of its patterns have too many stars, and were left out")
    understood = []
    for line in bounded:
        with suppress(ValueError):
            GitIgnoreSpec.from_lines([line])
            understood.append(line)
    return (_Ignores(folder, GitIgnoreSpec.from_lines(understood)),)


def _is_bounded(line: str) -> bool:
    """Tell whether a pattern is matched in bounded time; a backtracking expression is made of it."""
    parts = line.strip().rstrip("/").removesuffix("/**").split("/")
    names = [part for part in parts if part != "**"]
    return len(parts) - len(names) <= MOST_DOUBLE_STARS and all(part.count("*") <= MOST_STARS for part in names)


def _ignores_above(root: Path) -> tuple[_Ignores, ...]:
    """Return the patterns of the folders above a root, up to the head of the repository that it is in.

    There are none where they ignore the root itself: who names such a folder wants it read.
    """
    here = root.resolve()
    above: list[Path] = []
    if (here / ".git").exists():
        return ()
    for folder in here.parents:
        above.insert(0, folder)
        if (folder / ".git").exists():
            patterns = tuple(ignores for folder in above for ignores in _ignores_of(folder))
            return () if _ignored(here, True, patterns) else patterns
    return ()


def _ignored(path: Path, folder: bool, ignores: Sequence[_Ignores]) -> bool:
    """Tell whether the nearest patterns that speak of a path ignore it."""
    real: Any = None
    for rules in reversed(ignores):
        try:
            inside = path.relative_to(rules.folder)
        except ValueError:  # patterns above the root are under its real path
            real = real or path.parent.resolve() / path.name
            inside = real.relative_to(rules.folder)
        verdict = rules.patterns.check_file(inside.as_posix() + "/" * folder).include
        if verdict is not None:
            return verdict
    return False
