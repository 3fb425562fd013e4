"""Documents, arrays and whole states of local indexes, for the store's tests."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from palmette.arrays import Ragged, Stored
from palmette.search.plan import ArraySpec, Score, SearchPlan
from palmette.store.local.database import DATABASE, connect
from palmette.store.protocols import Backend, View, read_array
from palmette.types import Document

SPECS = (
    ArraySpec("leaves", (8,)),
    ArraySpec("tokens", (2, 3), "float16"),
    ArraySpec("sentences", (3,), "int8", ragged=True),
)

State = dict[str, tuple[Document, bytes]]
"""Everything an index holds: documents and the bytes of their arrays, by id."""


def key_of(view: View, id: str) -> int | None:
    """Key of the first passage of a document, or ``None``."""
    return next(iter(view.keys_of([id]).get(id, ())), None)


def arrays_of(documents: Sequence[Document]) -> dict[str, Stored]:
    """Arrays that depend on the content alone, so that a mix-up of rows shows."""
    leaves, tokens, sentences = [], [], [Ragged.empty(0, (3,), "int8")]
    for document in documents:
        content = f"{document.id} {document.digest}".encode("utf-8", "surrogatepass")
        rng = np.random.default_rng(zlib.crc32(content))
        leaf = rng.random(8).astype(np.float32) ** 2
        leaves.append(leaf / leaf.sum())
        tokens.append(rng.random((2, 3)).astype(np.float16))
        sentences.append(ragged_of(rng.integers(-9, 9, (rng.integers(4), 3)).astype(np.int8)))
    return {
        "leaves": np.array(leaves, np.float32).reshape(-1, 8),
        "tokens": np.array(tokens, np.float16).reshape(-1, 2, 3),
        "sentences": Ragged.concatenate(sentences),
    }


def ragged_of(*rows: np.ndarray) -> Ragged:
    """Ragged rows of some documents."""
    return Ragged(np.concatenate(rows), np.cumsum([0, *map(len, rows)]))


def plan(queries: object = None, metric: str = "inner_product", fold: int = 1, array: str = "leaves") -> SearchPlan:
    """A search of the leaves; by default of one query of ones."""
    given = np.ones((1, 8)) if queries is None else queries
    return SearchPlan(Score(array, np.asarray(given, np.float32), metric, fold))


def doc(id: str, text: str = "", **metadata: object) -> Document:
    return Document(id, text or f"text of {id}", metadata)


def put(backend: Backend, *documents: Document) -> None:
    with backend.write() as writer:
        writer.put(documents, arrays_of(documents))


def delete(backend: Backend, *ids: str) -> list[str]:
    with backend.write() as writer:
        return writer.delete(ids)


def state_for(documents: Iterable[Document], arrays: Callable[[Sequence[Document]], Any] = arrays_of) -> State:
    """What an index with these documents must hold."""
    return {document.key: (document, b"".join(row_bytes(arrays([document]), 0))) for document in documents}


def state_of(backend: Backend) -> State:
    """What an index does hold, read in one view."""
    with backend.read() as view:
        keys = np.random.default_rng(7).permutation(view.keys()).tolist()
        documents = view.documents(keys)
        arrays = {spec.name: read_array(view, spec, keys) for spec in backend.arrays}
        check_words(view, keys, documents)
    return {document.key: (document, b"".join(row_bytes(arrays, row))) for row, document in enumerate(documents)}


def row_bytes(arrays: Mapping[str, Stored], row: int) -> Iterator[bytes]:
    """What every array holds of one document."""
    for array in arrays.values():
        yield (array.row(row) if isinstance(array, Ragged) else array[row]).tobytes()


def check_words(view: View, keys: Sequence[int], documents: Sequence[Document]) -> None:
    """Every document is found by its own words, and nothing else is."""
    for key, document in zip(keys, documents, strict=True):
        found = view.words(document.text, len(keys) + 1)
        assert set(found.keys.tolist()) <= set(keys)
        if words := view.words(document.text, 0, only=np.array([key])).scores[0]:
            assert found.scores[found.keys == key] == [words]


def fast_place() -> str | None:
    """A folder in memory, if there is one: what a killed process has written survives there as well as on a disk."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def environment() -> dict[str, str]:
    """Environment of a fresh Python that finds palmette and these helpers."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def run_program(*arguments: object, timeout: float | None = 60) -> subprocess.CompletedProcess[str]:
    """Run a fresh Python."""
    program = [sys.executable, *map(str, arguments)]
    return subprocess.run(program, env=environment(), capture_output=True, text=True, timeout=timeout)


def run_python(script: str, *arguments: object, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return run_program("-c", script, *arguments, timeout=timeout)


def watching(*words: object) -> subprocess.Popen[str]:
    """Start ``palmette index … --watch``, which looks often and waits a moment for another writer."""
    code = "from palmette import Index\nfrom palmette.cli import commands, main\ncommands.WATCH_SECONDS = 0.05\n"
    code += "Index.open.__func__.__kwdefaults__['lock_timeout'] = 0.5\n"
    program = [sys.executable, "-c", f"{code}main({['index', *map(str, words), '--watch', '--json', '--quiet']})"]
    return subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def flip(path: Path, place: int = -3) -> None:
    """Change a bit of a file."""
    content = bytearray(path.read_bytes())
    content[place] ^= 0x10
    path.write_bytes(content)


def sql(folder: Path, statement: str, *values: object) -> None:
    """Change rows of an index, with valid checksums."""
    with closing(connect(folder / DATABASE, "mode=rw")) as connection:
        connection.execute(statement, values)


def spoil_page(folder: Path, table: str, kind: str, content: bytes, *, last: bool = False) -> None:
    """Fill the first page, or the last, of one kind of a table."""
    path = folder / DATABASE
    with closing(connect(path, "mode=rw")) as connection:
        query = "SELECT pageno FROM dbstat WHERE name = ? AND pagetype = ? ORDER BY pageno"
        pages = [page for (page,) in connection.execute(query, [table, kind])]
    with path.open("r+b") as file:
        file.seek((pages[-last] - 1) * 4096)
        file.write(content * 4096)
