"""The words of a segment's documents: files beside its arrays, written and merged with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palmette.lexical.postings import Collector, Postings, merged
from palmette.lexical.tokens import Analyser
from palmette.store.column import Column, Files
from palmette.types import Document

__all__ = ["WordsWriter", "file_of", "open_words"]

_TYPES = {"terms": "u8", "starts": "i8", "rows": "i4", "counts": "u1", "lengths": "i4"}
_RUN = 1 << 22  # postings collected before they are laid down in a file

Read = Callable[[str, np.dtype[Any]], NDArray[Any]]


def file_of(name: str) -> str:
    """Where an array of the postings lies; no array of a model can have such a name."""
    return f"words-{name}.npy"


def open_words(read: Read) -> Postings:
    """The postings of a segment, from arrays by name and type."""
    return Postings(**{name: read(name, np.dtype(kind)) for name, kind in _TYPES.items()})


class WordsWriter:
    """Postings in the making, in the folder of their segment; memory stays bounded."""

    def __init__(self, folder: Path, analyser: Analyser, *, durable: bool, run: int = _RUN) -> None:
        self.folder, self.analyser, self.durable, self.run = folder, analyser, durable, run
        self._collector = Collector(analyser)
        self._parts: list[tuple[Postings, NDArray[np.int64]]] = []
        self._runs: list[Path] = []
        self._count = 0
        self._columns: dict[str, Column] = {}

    def add(self, documents: Sequence[Document]) -> None:
        """Add documents."""
        self._collector.add([document.all_text for document in documents])
        if self._collector.size >= self.run:
            self._lay_down()

    def _lay_down(self) -> None:
        """Write what has been collected to a file of its own, and map it."""
        made, self._collector = self._collector.postings(), Collector(self.analyser)
        place = len(self._runs)

        def kept(name: str, kind: np.dtype[Any]) -> NDArray[Any]:
            path = self.folder / f"run{place}-{name}.npy"
            self._runs.append(path)
            np.save(path, getattr(made, name))
            mapped: NDArray[Any] = np.load(path, mmap_mode="r")
            return mapped

        self.take(open_words(kept), np.arange(len(made)))

    def take(self, postings: Postings, rows: NDArray[np.int64]) -> None:
        """Add some documents (rising rows) of another segment."""
        new = np.full(len(postings), -1, np.int64)
        new[rows] = np.arange(self._count, self._count + len(rows))
        self._parts.append((postings, new))
        self._count += len(rows)

    def finish(self) -> Files:
        """Write the files."""
        if self._collector.documents:
            made = self._collector.postings()
            self.take(made, np.arange(len(made)))
        for name, kind in _TYPES.items():
            self._columns[name] = Column(self.folder / file_of(name), np.dtype(kind))
        for postings, new in self._parts:
            self._columns["lengths"].append(postings.lengths[new >= 0])
        end = 0
        self._columns["starts"].append(np.zeros(1, np.int64))
        for piece in merged(self._parts):
            ends = end + np.cumsum(piece.sizes)
            end = int(ends[-1])
            for name, values in (("terms", piece.terms), ("starts", ends), ("rows", piece.rows)):
                self._columns[name].append(values)
            self._columns["counts"].append(piece.counts)
        files = {file_of(name): column.finish(durable=self.durable) for name, column in self._columns.items()}
        self._parts.clear()
        for path in self._runs:
            path.unlink()
        return files

    def close(self) -> None:
        """Let go of the files."""
        for column in self._columns.values():
            column.file.close()
