"""Documents, arrays and whole states of local indexes, for the store's tests."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from collections.abc import Iterable, Sequence

import numpy as np

from palmette.search.plan import ArraySpec, Score, SearchPlan, View
from palmette.store.local import LocalBackend
from palmette.types import Document

SPECS = (ArraySpec("leaves", (8,)), ArraySpec("tokens", (2, 3), "float16"))

State = dict[str, tuple[Document, bytes]]
"""Everything an index holds: documents and the bytes of their arrays, by id."""


def arrays_of(documents: Sequence[Document]) -> dict[str, np.ndarray]:
    """Arrays that depend on the content alone, so that a mix-up of rows shows."""
    leaves, tokens = [], []
    for document in documents:
        rng = np.random.default_rng(
            zlib.crc32(f"{document.id} {document.digest}".encode("utf-8", "surrogatepass"))
        )
        leaf = rng.random(8).astype(np.float32) ** 2
        leaves.append(leaf / leaf.sum())
        tokens.append(rng.random((2, 3)).astype(np.float16))
    return {
        "leaves": np.array(leaves, np.float32).reshape(-1, 8),
        "tokens": np.array(tokens, np.float16).reshape(-1, 2, 3),
    }


def plan(
    queries: object = None, metric: str = "inner_product", fold: int = 1, array: str = "leaves"
) -> SearchPlan:
    """A search of the leaves; by default of one query of ones."""
    given = np.ones((1, 8)) if queries is None else queries
    return SearchPlan(Score(array, np.asarray(given, np.float32), metric, fold))


def doc(id: str, text: str = "", **metadata: object) -> Document:
    return Document(id, text or f"text of {id}", metadata)


def put(backend: LocalBackend, *documents: Document) -> None:
    with backend.write() as writer:
        writer.put(documents, arrays_of(documents))


def delete(backend: LocalBackend, *ids: str) -> list[str]:
    with backend.write() as writer:
        return writer.delete(ids)


def state_for(documents: Iterable[Document]) -> State:
    """What an index with these documents must hold."""
    state = {}
    for document in documents:
        arrays = arrays_of([document])
        state[document.key] = (document, arrays["leaves"].tobytes() + arrays["tokens"].tobytes())
    return state


def state_of(backend: LocalBackend) -> State:
    """What an index does hold, read in one view."""
    with backend.read() as view:
        keys = view.keys().tolist()
        documents = view.documents(keys)
        leaves, tokens = view.rows("leaves", keys), view.rows("tokens", keys)
        check_words(view, keys, documents)
    rows = [leaf.tobytes() + token.tobytes() for leaf, token in zip(leaves, tokens, strict=True)]
    return {document.key: (document, row) for document, row in zip(documents, rows, strict=True)}


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


def program_environment() -> dict[str, str]:
    """The environment in which a child Python finds palmette and these helpers."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def run_python(script: str, *arguments: object, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run a script in a fresh Python."""
    program = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(program, env=program_environment(), capture_output=True, text=True, timeout=timeout)


def become_nobody() -> None:
    """Give up root, before whom nothing is read-only."""
    with LocalBackend.in_memory(SPECS) as backend:  # whatever is imported late: Python may lie in root's home
        put(backend, doc("a"))
        state_of(backend)
    os.chdir("/")
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
