"""Arrays at rest: immutable folders of ``.npy`` files, one row per document, ordered by key.

A ragged array ``x`` is two files: all rows in ``x.npy``, and where each document's rows start in ``x.starts.npy``.
A segment is written under a temporary name, fsynced and renamed into place; only then may the database name
it. It never changes afterwards, so readers map it, and keep it when a later writer has merged it away.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import Keys, Ragged, Rows, Stored, take_documents
from palmette.errors import REPAIR, CorruptIndexError, InputError, shown
from palmette.lexical.analyser import Analyser
from palmette.lexical.postings import TYPES, Postings, PostingsBuilder
from palmette.machine.files import flaw_of, fsync_folder
from palmette.machine.progress import progress_bar
from palmette.search.plan import ArraySpec
from palmette.store.local.database import MOST_KEY
from palmette.store.local.folder import SEGMENTS
from palmette.store.memory import ArraySegment

KEYS = "keys"
NUMBERS = "numbers"
"""Numbers of passages within their documents, which begin at 0."""
_TEMPORARY = ".tmp"
_CHUNK = 1 << 24  # bytes copied at a time
_NAME = re.compile(rf"[0-9a-f]{{16}}({re.escape(_TEMPORARY)})?")
_FILE = re.compile(r"[A-Za-z_][\w.-]*\.npy", re.ASCII)
_HEADER = 256  # bytes reserved at the beginning of a .npy file

Files = dict[str, dict[str, Any]]
"""``{file name: {"size": bytes, "sha256": hex}}``."""


class Column:
    """One ``.npy`` file written row by row; its header is reserved, and filled in when the count is known."""

    def __init__(self, path: Path, dtype: str, shape: tuple[int, ...]) -> None:
        self.path, self.dtype, self.shape = path, np.dtype(dtype), shape
        self.file = path.open("wb", buffering=0)  # a forked child would write what lies in a buffer once more
        try:
            self._write(bytes(_HEADER))
        except BaseException:
            self.file.close()
            raise
        self.count = 0

    def append(self, rows: NDArray[Any]) -> None:
        """Add rows."""
        self._write(np.ascontiguousarray(rows, self.dtype).reshape(-1).view(np.uint8).data)
        self.count += len(rows)

    def _write(self, content: bytes | memoryview) -> None:
        rest = memoryview(content)
        while rest:  # the system may take a part only
            rest = rest[self.file.write(rest) :]

    def finish(self, *, durable: bool) -> dict[str, Any]:
        """Fill in the header, flush to the disk, and describe the file."""
        described = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False}
        text = repr({**described, "shape": (self.count, *self.shape)}).encode("latin1")
        body = _HEADER - 10
        self.file.seek(0)
        self._write(b"\x93NUMPY\x01\x00" + body.to_bytes(2, "little") + text.ljust(body - 1) + b"\n")
        if durable:
            os.fsync(self.file.fileno())
        self.file.close()
        return {"size": self.path.stat().st_size, "sha256": _sha256(self.path)}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class SegmentWriter:
    """Builds one segment; readers see nothing of it before :meth:`publish`."""

    def __init__(self, folder: Path, arrays: Sequence[ArraySpec], analyser: Analyser, *, durable: bool) -> None:
        self.folder, self.durable, self.count = folder / SEGMENTS, durable, 0
        self.name = secrets.token_hex(8)
        self.path = self.folder / (self.name + _TEMPORARY)
        self.path.mkdir()
        self.arrays = arrays
        self._words = PostingsBuilder(analyser, self.path)
        self._columns: dict[str, Column] = {}
        words = (ArraySpec(f"words-{name}", (), kind) for name, kind in TYPES.items())  # no array is named so
        try:
            for spec in (ArraySpec(KEYS, (), "int64"), ArraySpec(NUMBERS, (), "int32"), *arrays, *words):
                self._columns[spec.name] = Column(self.path / f"{spec.name}.npy", spec.dtype, spec.shape)
                if spec.ragged:
                    name = _starts(spec)
                    self._columns[name] = Column(self.path / f"{name}.npy", "int64", ())
                    self._columns[name].append(np.zeros(1))
        except BaseException:  # an interrupt too
            self.drop()
            raise

    def append(self, keys: Keys, numbers: Rows, arrays: Mapping[str, Stored], texts: Sequence[str] = ()) -> None:
        """Add passages; their keys must rise. ``texts`` give their words, unless postings are copied."""
        if texts:
            self._words.add(texts)
        self._columns[KEYS].append(keys)
        self._columns[NUMBERS].append(numbers)
        for spec in self.arrays:
            array, column = arrays[spec.name], self._columns[spec.name]
            if isinstance(array, Ragged):
                self._columns[_starts(spec)].append(array.starts[1:] + column.count)
            column.append(array.values if isinstance(array, Ragged) else array)
        self.count += len(keys)

    def append_segment(self, segment: Segment, rows: Rows, advance: Callable[[int], object]) -> None:
        """Copy some rows of another segment, a piece at a time."""
        sizes = np.full(len(rows), 12)  # bytes of each passage, its key and number included
        for spec in self.arrays:
            array, width = segment.arrays[spec.name], np.dtype(spec.dtype).itemsize * math.prod(spec.shape)
            sizes += width * (array.counts(rows) if isinstance(array, Ragged) else 1)
        ends, start = np.cumsum(sizes), 0
        while start < len(rows):
            most = ends[start] - sizes[start] + _CHUNK
            stop = max(start + 1, int(np.searchsorted(ends, most, side="right")))
            piece = rows[start:stop]
            arrays = {s.name: take_documents(segment.arrays[s.name], piece) for s in self.arrays}
            self.append(segment.keys[piece], segment.numbers[piece], arrays)
            advance(len(piece))
            start = stop
        self._words.add_postings(segment.words, rows)

    def finish(self) -> Files:
        """Write the words, fill in the headers and flush everything to the disk."""
        for name, values in self._words.chunks():
            self._columns[f"words-{name}"].append(values)
        files = {f"{name}.npy": column.finish(durable=self.durable) for name, column in self._columns.items()}
        if self.durable:
            fsync_folder(self.path)
        return files

    def publish(self) -> None:
        """Rename into place: from here on a committed row may name it."""
        self.path = self.path.rename(self.folder / self.name)
        if self.durable:
            fsync_folder(self.folder)

    def drop(self) -> None:
        """Remove the segment's files."""
        for column in self._columns.values():
            with suppress(OSError):  # a full disk may refuse the last buffered bytes, which nobody wants
                column.file.close()
        shutil.rmtree(self.path, ignore_errors=True)


class Segment(ArraySegment):
    """A published segment, mapped for reading, with what searches derive from it."""

    def __init__(self, folder: Path, name: str, count: int, files: Files, arrays: Iterable[ArraySpec]) -> None:
        _check_row(folder, name, count, files)
        self.name, self.count, self.files = name, count, files
        self.path = folder / SEGMENTS / name
        keys = self._map(KEYS, np.int64, (count,))
        if keys[0] < 1 or keys[-1] > MOST_KEY or not (keys[1:] > keys[:-1]).all():
            raise damaged(self._file(KEYS), f"keys that rise from 1 or more to {MOST_KEY} at most", "others")
        super().__init__(keys, {spec.name: self._open(spec) for spec in arrays})
        self.numbers: Rows = self._map(NUMBERS, np.int32, (count,))
        # the passages of each document follow each other from number 0
        later = np.flatnonzero(self.numbers)
        before = later - 1
        follows = (self.numbers[later] == self.numbers[before] + 1) & (keys[later] == keys[before] + 1)
        if len(later) and (later[0] == 0 or not follows.all()):
            raise damaged(self._file(NUMBERS), "passages of each document in order", "others")
        self.words = Postings.read(lambda name, dtype: self._map(f"words-{name}", dtype), str(self.path))
        if fault := self.words.fault(count):
            raise damaged(self._file(f"words-{fault[0]}"), *fault[1:])

    @property
    def bytes(self) -> int:
        """Size on disk."""
        return sum(int(file["size"]) for file in self.files.values())

    def _file(self, name: str) -> Path:
        return self.path / f"{name}.npy"

    def _map(self, name: str, dtype: Any, shape: tuple[int, ...] | None = None) -> NDArray[Any]:
        """Map a ``.npy`` file into memory, and raise unless size, type and shape are those recorded."""
        path = self._file(name)
        state = path.lstat()
        if not stat.S_ISREG(state.st_mode):
            raise damaged(path, "a regular file", flaw_of(path))
        if path.name not in self.files:
            raise damaged(self.path, f"a sum of {path.name} in the database", "none")
        size, expected = state.st_size, self.files[path.name]["size"]
        if size != expected:
            raise damaged(path, f"{expected} bytes", f"{size} bytes")
        try:
            mapped = np.lib.format.open_memmap(path, mode="r")
        except OSError:
            raise
        except Exception as error:  # NumPy parses the header as Python: anything may come of a flipped bit
            raise damaged(path, "a .npy header", str(error)) from error
        if mapped.offset + mapped.nbytes != size:
            raise damaged(path, f"numbers in all of {size} bytes", f"a header of the shape {mapped.shape}")
        if mapped.dtype != np.dtype(dtype):
            raise damaged(path, f"numbers of {np.dtype(dtype)}", f"{mapped.dtype}")
        if not mapped.flags.c_contiguous or mapped.shape != (shape or mapped.shape):
            raise damaged(path, f"rows of the shape {shape}", f"{mapped.shape}")
        return mapped.view(np.ndarray)

    def _open(self, spec: ArraySpec) -> Stored:
        """Open a stored array, plain or ragged."""
        if not spec.ragged:
            return self._map(spec.name, spec.dtype, (self.count, *spec.shape))
        starts = self._map(_starts(spec), np.int64, (self.count + 1,))
        values = self._map(spec.name, spec.dtype)
        if values.shape[1:] != spec.shape:
            raise damaged(self._file(spec.name), f"rows of shape {spec.shape}", f"{values.shape}")
        try:
            return Ragged(values, starts)
        except InputError as error:
            expected = f"offsets that rise from 0 to {len(values)}"
            raise damaged(self._file(_starts(spec)), expected, "other numbers") from error

    def check(self, spec: ArraySpec) -> None:
        """Raise unless an array's numbers, and the rows that it has of each document, are as its specification says."""
        array = self.arrays[spec.name]
        if spec.valid_range is not None:
            low, high = spec.valid_range
            if array.min() < low or array.max() > high:
                raise damaged(self._file(spec.name), f"numbers from {low} to {high}", f"{array.min()} to {array.max()}")
        if spec.aligned and not np.array_equal(array.starts, self.arrays[spec.aligned].starts):
            raise damaged(self._file(_starts(spec)), f"the numbers of {spec.aligned}.starts.npy", "others")

    def verify(self, advance: Callable[[int], object], names: Iterable[str] | None = None) -> None:
        """Compare files, by default all, with their checksums."""
        for name in names or self.files:
            recorded = self.files[name]
            digest = _sha256(self.path / name)
            if digest != recorded["sha256"]:
                raise damaged(self.path / name, f"sha256 {recorded['sha256']}", f"sha256 {digest}")
            advance(recorded["size"])


def _check_row(folder: Path, name: object, count: object, files: object) -> None:
    """Raise unless a row of the database describes a segment: name, count, size and sum of its files."""
    known = isinstance(files, dict) and all(
        isinstance(file, str)
        and _FILE.fullmatch(file)
        and isinstance(facts, dict)
        and type(facts.get("size")) is int
        and isinstance(facts.get("sha256"), str)
        for file, facts in files.items()
    )
    if not known or not isinstance(name, str) or not _NAME.fullmatch(name):
        raise damaged(folder / SEGMENTS, "names of its own files", f"{shown(name)} with {shown(files)}")
    if type(count) is not int or count < 1:
        raise damaged(folder / SEGMENTS / name, "a count of documents", shown(count))


def _starts(spec: ArraySpec) -> str:
    return f"{spec.name}.starts"


def progress(total: int, doing: str, *, least: int = 0, **options: Any) -> Any:
    """Show a bar for what takes longer than two seconds; a total below ``least`` does not, and needs no tqdm."""
    if total < least:
        return nullcontext(SimpleNamespace(update=lambda done: None))
    return progress_bar(None, total=total, desc=doing, delay=2, leave=False, **options)


def damaged(path: Path, expected: str, actual: str) -> CorruptIndexError:
    """Make the error for a file that is not as it was written."""
    return CorruptIndexError(f"{path} is damaged: expected {expected}, found {actual}; {REPAIR}")


def remove_orphans(folder: Path, named: set[str] | None) -> None:
    """Remove what writers left: unfinished segments, and, when ``named`` is given, those outside it.

    A finished segment goes only after a later commit: until then, a commit that failed on a dying disk may
    still turn out to have happened.
    """
    for entry in (folder / SEGMENTS).iterdir():
        ours = _NAME.fullmatch(entry.name)
        unwanted = entry.name.endswith(_TEMPORARY) or (named is not None and entry.name not in named)
        if ours and unwanted:
            shutil.rmtree(entry, ignore_errors=True)
