"""Arrays at rest: immutable folders of ``.npy`` files, one row per document, ordered by key.

A segment is written under a temporary name, fsynced and renamed into place; only then may the database name
it. It never changes afterwards, so readers map it, and keep it when a later writer has merged it away.
"""

from __future__ import annotations

import re
import secrets
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palmette.errors import CorruptIndexError
from palmette.lexical.postings import Postings
from palmette.lexical.tokens import Analyser
from palmette.search.block import Block
from palmette.search.kernels import searchable
from palmette.search.listing import Listing
from palmette.search.probe import ArraySpec, Keys
from palmette.store.column import CHUNK, Column, Files, sha256
from palmette.store.manifest import fsync_folder
from palmette.store.words import WordsWriter, file_of, open_words
from palmette.types import Document

__all__ = ["SEGMENTS", "Segment", "SegmentWriter", "damaged", "remove_orphans"]

SEGMENTS = "segments"
KEYS = "keys"
_TEMPORARY = ".tmp"


class SegmentWriter:
    """Builds one segment; nothing of it shows until :meth:`publish`."""

    def __init__(
        self, folder: Path, arrays: Sequence[ArraySpec], analyser: Analyser, *, durable: bool
    ) -> None:
        self.folder, self.durable, self.count = folder / SEGMENTS, durable, 0
        self.name = secrets.token_hex(8)
        self.path = self.folder / (self.name + _TEMPORARY)
        self.path.mkdir()
        self._words = WordsWriter(self.path, analyser, durable=durable)
        self._columns: dict[str, Column] = {}
        try:
            self._columns[KEYS] = Column(self.path / f"{KEYS}.npy", np.dtype(np.int64), ())
            for spec in arrays:
                self._columns[spec.name] = Column(
                    self.path / f"{spec.name}.npy", np.dtype(spec.dtype), spec.shape
                )
        except OSError:
            self.drop()
            raise

    def append(
        self, keys: Keys, arrays: Mapping[str, NDArray[Any]], documents: Sequence[Document] = ()
    ) -> None:
        """Add rows; their keys must rise. ``documents`` gives their words, if nothing else does."""
        if documents:
            self._words.add(documents)
        self._columns[KEYS].append(keys)
        for name, column in self._columns.items():
            if name != KEYS:
                column.append(arrays[name])
        self.count += len(keys)

    def append_segment(
        self, segment: Segment, rows: NDArray[np.int64], advance: Callable[[int], object]
    ) -> None:
        """Copy some rows of another segment, a piece at a time."""
        width = sum(column.dtype.itemsize * int(np.prod(column.shape)) for column in self._columns.values())
        step = max(1, CHUNK // width)
        for start in range(0, len(rows), step):
            piece = rows[start : start + step]
            self.append(segment.keys[piece], {n: segment.array(n)[piece] for n in self._columns if n != KEYS})
            advance(len(piece))
        self._words.take(segment.words, rows)

    def finish(self) -> Files:
        """Fill in the headers and flush everything to the disk."""
        files = {
            f"{n}.npy": column.finish(durable=self.durable) for n, column in self._columns.items()
        } | self._words.finish()
        if self.durable:
            fsync_folder(self.path)
        return files

    def publish(self) -> None:
        """Rename into place: from here on a committed row may name it."""
        self.path = self.path.rename(self.folder / self.name)
        if self.durable:
            fsync_folder(self.folder)

    def drop(self) -> None:
        """Forget the segment and its files."""
        for column in self._columns.values():
            try:
                column.file.close()
            except OSError:  # a full disk may refuse the last buffered bytes, which nobody wants
                continue
        shutil.rmtree(self.path, ignore_errors=True)


class Segment:
    """A published segment, mapped for reading, with what searches derive from it."""

    def __init__(
        self, folder: Path, name: str, count: int, files: Files, arrays: Iterable[ArraySpec]
    ) -> None:
        self.name, self.count, self.files = name, count, files
        self.path = folder / SEGMENTS / name
        self._arrays: dict[str, NDArray[Any]] = {}
        self._blocks: dict[tuple[str, int | tuple[int, ...]], Block] = {}
        self._listings: dict[str, Listing] = {}
        self._lock = threading.Lock()
        self.keys: Keys = self._map(KEYS, np.dtype(np.int64), ())
        self._first = int(self.keys[0])
        self._dense = int(self.keys[-1]) - self._first + 1 == count
        for spec in arrays:
            self._arrays[spec.name] = self._map(spec.name, np.dtype(spec.dtype), spec.shape)
        self.words: Postings = open_words(lambda name, dtype: self._open(self.path / file_of(name), dtype))

    @property
    def bytes(self) -> int:
        """Size on disk."""
        return sum(int(file["size"]) for file in self.files.values())

    def _map(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        mapped, expected = self._open(self.path / f"{name}.npy", dtype), (self.count, *shape)
        if mapped.shape != expected:
            raise damaged(self.path / f"{name}.npy", f"the shape {expected}", f"{mapped.shape}")
        return mapped

    def _open(self, path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
        size, expected = path.stat().st_size, self.files[path.name]["size"]
        if size != expected:
            raise damaged(path, f"{expected} bytes", f"{size} bytes")
        try:
            mapped: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        except ValueError as error:
            raise damaged(path, "a .npy header", str(error)) from error
        if mapped.dtype != dtype:
            raise damaged(path, f"numbers of {dtype}", f"{mapped.dtype}")
        return mapped.view(np.ndarray)

    def array(self, name: str) -> NDArray[Any]:
        """A stored array, mapped: [count, *shape]."""
        return self._arrays[name]

    def rows(self, keys: Keys) -> NDArray[np.int64]:
        """Row numbers of those keys that lie here (``keys`` rises)."""
        low, high = np.searchsorted(keys, (self._first, int(self.keys[-1]) + 1))
        wanted = keys[low:high]
        if self._dense:
            return wanted - self._first
        rows = np.searchsorted(self.keys, wanted)
        return rows[self.keys[rows] == wanted] if len(rows) else rows

    def block(self, name: str, fold: int | tuple[int, ...]) -> Block:
        """The array as the kernels want it, its columns summed in runs.

        What is not stored that way is computed once, and kept in memory as long as the segment is open.
        """
        with self._lock:
            if (name, fold) not in self._blocks:
                self._blocks[name, fold] = Block(searchable(self._arrays[name], fold), self.keys)
            return self._blocks[name, fold]

    def listing(self, name: str) -> Listing:
        """Which rows lie in which lists, by a stored array of list numbers; computed once, and kept."""
        with self._lock:
            if name not in self._listings:
                self._listings[name] = Listing(self._arrays[name])
            return self._listings[name]

    def verify(self, advance: Callable[[int], object]) -> None:
        """Compare every file with its checksum."""
        for name, recorded in self.files.items():
            found = sha256(self.path / name, advance)
            if found != recorded["sha256"]:
                raise damaged(self.path / name, f"sha256 {recorded['sha256']}", f"sha256 {found}")


def damaged(path: Path, expected: str, found: str) -> CorruptIndexError:
    """The error for a file that is not as it was written."""
    return CorruptIndexError(
        f"{path} is damaged: expected {expected}, found {found}; "
        "restore it from a backup, or build the index again"
    )


def remove_orphans(folder: Path, named: set[str] | None) -> None:
    """Remove what writers left: unfinished segments, and, when ``named`` is given, those outside it.

    A finished segment goes only after a later commit: until then, a commit that failed on a dying disk may
    still turn out to have happened.
    """
    for entry in (folder / SEGMENTS).iterdir():
        ours = re.fullmatch(rf"[0-9a-f]{{16}}({re.escape(_TEMPORARY)})?", entry.name)
        unwanted = entry.name.endswith(_TEMPORARY) or (named is not None and entry.name not in named)
        if ours and unwanted:
            shutil.rmtree(entry, ignore_errors=True)
