"""Encodings kept on disk, so that a text is encoded once: one SQLite file per encoder and output.

    ROOT/encodings/HASH.sqlite   about (encoder, facts), texts (key, crc, data, sentences, batch),
                                 batches (id, used, bytes)

A key is the first 16 bytes of a text's SHA-256; the CRC-32 is that of key and data. Data are the pooled vector
(float32), or the states of the text's tokens one after the other (float16). Sentences, where they are known, are
the CRC-32 of key and rest, the spans (int32) and the vectors (int8). Texts are written in batches, and the batches
that were used least recently are deleted when the folder exceeds its limit.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import sqlite3
import sys
import tempfile
import time
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from filelock import FileLock
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from palmette.encoder.base import Copies, Encoder, Floats, Kind, Output, States
from palmette.encoder.sentences import Sentences, whole_texts
from palmette.errors import ConfigError, EncodingError, ReadOnlyError, StorageFullError

Halves = NDArray[np.float16]
_KEPT = 2_048  # texts encoded between two writes, which is the most that a killed run loses
_KEYS = 5_000  # of one query
_PATIENCE = 60.0  # seconds to wait for another writer
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)  # the last: no such table


class EncodingCache:
    """A folder of encodings, found by encoder, prompt, token limit, precision, output and text.

    The encoder's fingerprint is part of the key: another model, prompt or limit never meets these entries.
    Threads and processes of one machine may use the folder at once. Damaged encodings are made again, with a
    warning; a folder that cannot be written costs a warning, and nothing is kept.

    Args:
        root: The folder; by default ``$PALMETTE_CACHE``, or palmette's folder among the user's caches.
        max_gb: Limit of its size, beyond which the texts used least recently are deleted; by default
            ``$PALMETTE_CACHE_GB``, or 10.
    """

    def __init__(self, root: str | Path | None = None, *, max_gb: float | None = None) -> None:
        self.root = Path(root or default_cache_dir()).expanduser()
        given = os.environ.get("PALMETTE_CACHE_GB", "10") if max_gb is None else max_gb
        try:
            self.max_bytes = int(float(given) * 1e9)
        except (ValueError, OverflowError):
            self.max_bytes = -1
        if self.max_bytes < 0:
            name = "PALMETTE_CACHE_GB" if max_gb is None else "max_gb"
            raise ConfigError(f"{name} must be a number of gigabytes of at least 0, got {given!r}")

    def encode(
        self,
        encoder: Encoder,
        texts: Sequence[str],
        *,
        kind: Kind = "document",
        batch_size: int | None = None,
        progress: bool | None = None,
    ) -> Floats:
        """Read pooled vectors [N, d], or encode and keep them; documents with their sentences."""
        return self._encode(encoder, texts, kind, batch_size, progress, None)

    def encode_sentences(
        self,
        encoder: Encoder,
        texts: Sequence[str],
        *,
        batch_size: int | None = None,
        progress: bool | None = None,
    ) -> tuple[Floats, Sentences]:
        """Read pooled vectors [N, d] and sentences of documents, or encode and keep them."""
        if not encoder.has_offsets:
            pooled = self.encode(encoder, texts, batch_size=batch_size, progress=progress)
            return pooled, whole_texts(texts, pooled)
        known: dict[bytes, bytes] = {}
        pooled = self._encode(encoder, texts, "document", batch_size, progress, known)
        width = encoder.dimension
        blobs = [known[key] for key in _keys(encoder.check(texts, "document", cut=False))]
        counts = np.array([len(blob) // (8 + width) for blob in blobs], np.int64)
        starts = np.append(0, np.cumsum(counts))
        spans = np.frombuffer(b"".join(b[: 8 * n] for b, n in zip(blobs, counts, strict=True)), np.int32)
        vectors = np.frombuffer(b"".join(b[8 * n :] for b, n in zip(blobs, counts, strict=True)), np.int8)
        return pooled, Sentences.of(vectors.reshape(-1, width), spans.reshape(-1, 2), starts)

    def _encode(
        self,
        encoder: Encoder,
        texts: Sequence[str],
        kind: Kind,
        batch_size: int | None,
        progress: bool | None,
        sentences: dict[bytes, bytes] | None,
    ) -> Floats:
        """Return pooled vectors [N, d]; ``sentences``, where given, gets each text's spans and vectors by key."""
        checked, keys, file = self._open(encoder, texts, kind, "pooled")
        out = np.empty((len(keys), encoder.dimension), np.float32)
        first = {key: row for row, key in reversed(list(enumerate(keys)))}
        missing = dict(first)
        width = None if sentences is None else 8 + encoder.dimension
        for key, data, more in file.get(first, 4 * encoder.dimension, width):
            out[missing.pop(key)] = np.frombuffer(data, np.float32)
            if sentences is not None:
                sentences[key] = more
        rows = sorted(missing.values(), key=lambda row: -len(checked[row]))
        hidden = True if progress is False else None
        with tqdm(total=len(rows), desc="encoding", unit="text", delay=1, disable=hidden) as bar:
            for start in range(0, len(rows), _KEPT):
                some = rows[start : start + _KEPT]
                new = [checked[row] for row in some]
                options: dict[str, Any] = {"batch_size": batch_size, "positions": some}
                parts: list[bytes] | None = None
                if kind == "document" and encoder.has_offsets:
                    out[some], found = encoder.encode_sentences(new, **options)
                    parts = found.parts()
                else:
                    for batch, states in encoder.iter_states(new, kind=kind, **options):
                        assert states.pooled is not None
                        out[[some[i] for i in batch]] = states.pooled.cpu().numpy()
                named = [keys[row] for row in some]
                made = dict(zip(named, parts or (), strict=False))
                if sentences is not None:
                    sentences |= made
                self._keep(
                    file, {key: out[row].tobytes() for key, row in zip(named, some, strict=True)}, made
                )
                bar.update(len(some))
        return out[[first[key] for key in keys]] if len(first) < len(keys) else out

    def encode_tokens(
        self,
        encoder: Encoder,
        texts: Sequence[str],
        *,
        kind: Kind = "document",
        outputs: Literal["tokens", "layers"] = "tokens",
        progress: bool | None = None,
    ) -> tuple[Halves, NDArray[np.int64]]:
        """Return token states ``flat``, mapped from a temporary file, and where each text begins in it, ``offsets``.

        ``flat`` is float16 and read-only: [Σ T, d], or [Σ T, L + 1, d] for ``layers``. Text i has
        ``flat[offsets[i] : offsets[i + 1]]``.
        """
        checked, keys, file = self._open(encoder, texts, kind, outputs)
        layers = (encoder.num_layers + 1,) if outputs == "layers" else ()
        shape = (*layers, encoder.hidden_size)
        size = 2 * math.prod(shape)
        step = 1024 if outputs == "tokens" else 128  # texts whose states are held in memory
        lengths, hidden = [0], True if progress is False else None
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with (
                tempfile.TemporaryFile(dir=self.root) as flat,
                tqdm(total=len(keys), desc="encoding tokens", unit="text", delay=1, disable=hidden) as bar,
            ):
                for start in range(0, len(keys), step):
                    part = keys[start : start + step]
                    states = {key: data for key, data, _ in file.get(set(part), size)}
                    new = {key: start + i for i, key in enumerate(part) if key not in states}
                    made = _token_states(encoder, checked, new, kind, outputs)
                    file.put(made)
                    self._trim()
                    states |= made
                    for key in part:
                        flat.write(states[key])
                        lengths.append(len(states[key]) // size)
                    bar.update(len(part))
                flat.flush()
                offsets = np.cumsum(lengths, dtype=np.int64)
                if offsets[-1] == 0:  # an empty file cannot be mapped
                    return np.zeros((0, *shape), np.float16), offsets
                return np.memmap(flat, np.float16, "r", shape=(int(offsets[-1]), *shape)), offsets
        except (OSError, sqlite3.Error) as error:
            raise self._unwritable(error) from error

    def __repr__(self) -> str:
        return f"EncodingCache({str(self.root)!r})"

    def _open(
        self, encoder: Encoder, texts: Sequence[str], kind: Kind, output: str
    ) -> tuple[list[str], list[bytes], _File]:
        """Return checked texts, their keys, and the file of these encodings."""
        if not encoder.frozen:
            raise ConfigError(
                f"encoder {encoder.name!r} is being trained: its encodings change and are not kept"
            )
        whole = kind == "document" and output == "pooled" and encoder.has_offsets
        checked = encoder.check(texts, kind, cut=not whole)
        facts = {
            "format": 3,
            "fingerprint": encoder.fingerprint,
            "max_length": encoder.max_length,
            "precision": encoder.precision,
            "prompt": encoder.variant(kind),
            "output": output,
            "whole": whole,
        }
        text = json.dumps(facts, sort_keys=True)
        name = f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.sqlite"
        return checked, _keys(checked), _File(self.root / "encodings" / name, encoder.name, text)

    def _keep(self, file: _File, data: Mapping[bytes, bytes], sentences: Mapping[bytes, bytes]) -> None:
        try:
            file.put(data, sentences)
            self._trim()
        except (OSError, sqlite3.Error) as error:
            warnings.warn(f"encodings are not kept: {self._unwritable(error)}", stacklevel=4)

    # -- size -----------------------------------------------------------------------------------------------

    def entries(self) -> list[CacheEntry]:
        """List the files of encodings, most recently used first."""
        found = []
        for path in self._files():
            with contextlib.suppress(sqlite3.Error), contextlib.closing(_connect(path)) as connection:
                encoder, facts = connection.execute("SELECT encoder, facts FROM about").fetchone()
                texts, sentences = connection.execute(
                    "SELECT COUNT(*), COUNT(sentences) FROM texts"
                ).fetchone()
                used = connection.execute("SELECT MAX(used) FROM batches").fetchone()[0] or 0
                output = "sentences" if sentences else json.loads(facts)["output"]
                found.append(CacheEntry(encoder, output, texts, path.stat().st_size, used))
        return sorted(found, key=lambda entry: -entry.used)

    def clear(self, encoder: str | None = None) -> int:
        """Delete all encodings, or those of the encoder of this name; returns the bytes freed."""
        freed = 0
        for path in self._files():
            name = None
            with contextlib.suppress(sqlite3.Error), contextlib.closing(_connect(path)) as connection:
                name = connection.execute("SELECT encoder FROM about").fetchone()[0]
            if encoder in (None, name):
                freed += _remove(path)
        return freed

    def _files(self) -> list[Path]:
        found = (self.root / "encodings").glob("*")
        return sorted(path for path in found if path.suffix in (".sqlite", ".damaged"))

    def _trim(self) -> None:
        """Delete the batches used least recently, until a tenth of the limit is free."""
        excess = sum(path.stat().st_size for path in self._files()) - self.max_bytes
        if excess <= 0:
            return
        batches: list[tuple[int, int, int, Path]] = []  # used, bytes, id
        with FileLock(self.root / "encodings" / ".lock", timeout=_PATIENCE):
            for path in self._files():
                try:
                    with contextlib.closing(_connect(path)) as connection:
                        rows = connection.execute("SELECT used, bytes, id FROM batches").fetchall()
                except sqlite3.Error:  # damaged, or written by another version
                    rows = [(0, path.stat().st_size, -1)]
                batches += [(*row, path) for row in rows]
            excess += self.max_bytes // 10
            old: dict[Path, list[tuple[int]]] = {}
            for _, size, number, path in sorted(batches):
                if excess > 0:
                    old.setdefault(path, []).append((number,))
                    excess -= size
            for path, numbers in old.items():
                if (-1,) in numbers:
                    _remove(path)
                    continue
                with contextlib.closing(_connect(path)) as connection:
                    with connection:
                        connection.executemany("DELETE FROM texts WHERE batch = ?", numbers)
                        connection.executemany("DELETE FROM batches WHERE id = ?", numbers)
                    connection.executescript("PRAGMA incremental_vacuum")  # execute() would free one page

    def _unwritable(self, error: Exception) -> StorageFullError | ReadOnlyError:
        fix = "set PALMETTE_CACHE to a folder with room that you may write"
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        if full or getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
            return StorageFullError(f"no room left for encodings in {self.root}; {fix}")
        return ReadOnlyError(f"encodings cannot be written to {self.root} ({error}); {fix}")


class _File:
    """Encodings of one encoder and output."""

    def __init__(self, path: Path, encoder: str, facts: str) -> None:
        self.path, self.encoder, self.facts, self.lock = path, encoder, facts, path.parent / ".lock"

    def get(
        self, keys: Iterable[bytes], size: int, width: int | None = None
    ) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Yield known keys, their data, a multiple of ``size`` bytes, and their sentences, with ``width`` bytes each.

        Without ``width`` sentences are not read. Damaged data are skipped, with a warning.
        """
        wanted, damaged, batches = list(keys), 0, set[int]()
        left = set(wanted)
        if not self.path.exists():
            return
        try:
            with contextlib.closing(self._open()) as connection:
                step = min(_KEYS, connection.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER))
                columns, rest = ("sentences", " AND sentences NOT NULL") if width else ("NULL", "")
                for start in range(0, len(wanted), step):
                    some = wanted[start : start + step]
                    query = (
                        f"SELECT key, crc, data, batch, {columns} FROM texts "
                        f"WHERE key IN ({','.join('?' * len(some))}){rest}"
                    )
                    for key, crc, data, batch, more in connection.execute(query, some):
                        if (
                            key in left
                            and isinstance(data, bytes)
                            and not len(data) % size
                            and zlib.crc32(data, zlib.crc32(key)) == crc
                            and (width is None or _is_whole(key, more, width))
                        ):
                            left.remove(key)
                            batches.add(batch)
                            yield key, data, more[4:] if width else b""
                        else:
                            damaged += 1
                self._mark(connection, batches)
        except sqlite3.Error as error:
            self._set_aside(error)
        if damaged:
            self._warn(f"{damaged} texts have been altered")

    def put(self, rows: Mapping[bytes, bytes], sentences: Mapping[bytes, bytes] | None = None) -> None:
        """Write data by key, as one batch, and sentences where they are known."""
        if not rows:
            return
        more = {key: _crc(key, blob) + blob for key, blob in (sentences or {}).items()}
        size = sum(map(len, rows.values())) + sum(map(len, more.values()))
        for last in (False, True):
            if not self.path.exists():
                self._create()
            try:
                with contextlib.closing(self._open()) as connection, connection:
                    added = "INSERT INTO batches (used, bytes) VALUES (?, ?)"
                    batch = connection.execute(added, (int(time.time()), size)).lastrowid
                    values = (
                        (key, zlib.crc32(rows[key], zlib.crc32(key)), rows[key], more.get(key), batch)
                        for key in sorted(rows)
                    )
                    connection.executemany("INSERT OR REPLACE INTO texts VALUES (?, ?, ?, ?, ?)", values)
                return
            except sqlite3.Error as error:
                if last or not self._set_aside(error):
                    raise

    def _mark(self, connection: sqlite3.Connection, batches: set[int]) -> None:
        """Note that batches are in use, once an hour; another writer, or a folder that is only read, may prevent it."""
        now = int(time.time())
        with contextlib.suppress(sqlite3.OperationalError):
            connection.execute("PRAGMA busy_timeout = 1000")
            with connection:
                rows = [(now, batch, now - 3600) for batch in batches]
                connection.executemany("UPDATE batches SET used = ? WHERE id = ? AND used < ?", rows)

    def _open(self) -> sqlite3.Connection:
        """Open a file that exists; in a folder that cannot be written, without SQLite's files beside it."""
        how = "mode=rw" if os.access(self.path.parent, os.W_OK) else "immutable=1"
        connection = _connect(self.path, how)
        try:
            connection.execute("PRAGMA synchronous=NORMAL")
            facts = connection.execute("SELECT facts FROM about").fetchone()
            if facts != (self.facts,):
                error = sqlite3.DatabaseError("it belongs to another encoder")
                error.sqlite_errorcode = sqlite3.SQLITE_NOTADB
                raise error
        except BaseException:
            connection.close()
            raise
        return connection

    def _create(self) -> None:
        """Make an empty file, unless there is one: beside its place, so that a kill leaves none that is half made."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self.lock, timeout=_PATIENCE):
            if self.path.exists():
                return
            new = self.path.with_suffix(".new")
            new.unlink(missing_ok=True)
            with contextlib.closing(sqlite3.connect(new)) as connection, connection:
                connection.execute("PRAGMA page_size=16384")  # read almost twice as fast as with 4096
                connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("CREATE TABLE about (encoder TEXT, facts TEXT)")
                connection.execute(
                    "CREATE TABLE batches (id INTEGER PRIMARY KEY, used INTEGER, bytes INTEGER)"
                )
                connection.execute(
                    "CREATE TABLE texts "
                    "(key BLOB PRIMARY KEY, crc INTEGER, data BLOB, sentences BLOB, batch INTEGER)"
                )
                connection.execute("CREATE INDEX texts_of_batches ON texts (batch)")
                connection.execute("INSERT INTO about VALUES (?, ?)", (self.encoder, self.facts))
            new.replace(self.path)

    def _set_aside(self, error: sqlite3.Error) -> bool:
        """Rename a damaged or foreign file, with a warning; return False for any other error."""
        if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF not in _DAMAGED:
            return False
        with contextlib.suppress(OSError), FileLock(self.lock, timeout=_PATIENCE):
            self.path.replace(self.path.with_suffix(".damaged"))
            _remove(self.path)
        self._warn(str(error))
        return True

    def _warn(self, why: str) -> None:
        warnings.warn(f"cached encodings {self.path} are damaged ({why}); they are made again", stacklevel=4)


class CacheEntry(NamedTuple):
    """What one file keeps: texts of an encoder, for an output, in bytes; and when it was used, in seconds."""

    encoder: str
    output: str
    texts: int
    bytes: int
    used: int


class CachedEncoder(Encoder):
    """An encoder whose vectors of texts and sentences are kept: what training has encoded, indexing need not again.

    Queries, tokens and layers go straight to the encoder. It takes an encoder's place anywhere.
    """

    def __init__(self, encoder: Encoder, cache: EncodingCache | str | Path | None = None) -> None:
        self.__dict__.update(encoder.__dict__)  # the same locks, limits and device
        self.has_offsets = encoder.has_offsets
        self.encoder = encoder
        self.cache = cache if isinstance(cache, EncodingCache) else EncodingCache(cache)

    def forward(  # noqa: D102
        self, texts: Sequence[str], kind: Kind, outputs: frozenset[Output], depth: int | None = None
    ) -> States:
        return self.encoder.forward(texts, kind, outputs, *([] if depth is None else [depth]))

    def copies(self, count: int) -> Copies | None:  # noqa: D102
        return self.encoder.copies(count)

    def to_config(self) -> dict[str, Any]:  # noqa: D102
        return self.encoder.to_config()

    def encode(
        self,
        texts: Sequence[str],
        *,
        kind: Kind = "document",
        batch_size: int | None = None,
        progress: bool | None = False,
    ) -> Floats:
        """Return pooled vectors [N, d], from the cache where they are known."""
        return self.cache.encode(self.encoder, texts, kind=kind, batch_size=batch_size, progress=progress)

    def iter_states(
        self,
        texts: Sequence[str],
        *,
        kind: Kind = "document",
        outputs: Sequence[Output] = ("pooled",),
        progress: bool | None = False,
        **options: Any,
    ) -> Iterator[tuple[NDArray[np.int64], States]]:
        """Yield pooled vectors of documents from the cache; all else from the encoder."""
        if tuple(outputs) != ("pooled",) or kind == "query":
            yield from self.encoder.iter_states(
                texts, kind=kind, outputs=outputs, progress=progress, **options
            )
            return
        vectors = self.encode(texts, kind=kind, batch_size=options.get("batch_size"), progress=progress)
        for start in range(0, len(texts), 1024):
            rows = np.arange(start, min(start + 1024, len(texts)))
            yield rows, States(torch.from_numpy(vectors[rows]).to(self.device))

    def encode_sentences(  # noqa: D102
        self,
        texts: Sequence[str],
        *,
        batch_size: int | None = None,
        progress: bool | None = False,
        positions: Sequence[int] | None = None,
    ) -> tuple[Floats, Sentences]:
        return self.cache.encode_sentences(self.encoder, texts, batch_size=batch_size, progress=progress)

    def finish(self, means: Tensor) -> Tensor:  # noqa: D102
        return self.encoder.finish(means)

    def encode_queries(self, texts: Sequence[str]) -> Floats:
        """Encode queries: they are rarely repeated, so they bypass the cache."""
        return self.encoder.encode_queries(texts)


def _keys(texts: Sequence[str]) -> list[bytes]:
    return [hashlib.sha256(text.encode()).digest()[:16] for text in texts]


def _crc(key: bytes, blob: bytes) -> bytes:
    return zlib.crc32(blob, zlib.crc32(key)).to_bytes(4, "little")


def _is_whole(key: bytes, blob: object, width: int) -> bool:
    """Tell whether sentences are as they were written."""
    return isinstance(blob, bytes) and len(blob) % width == 4 and _crc(key, blob[4:]) == blob[:4]


def _connect(path: Path, how: str = "mode=rw") -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?{how}", _PATIENCE, uri=True)


def _remove(path: Path) -> int:
    """Delete a file of encodings and SQLite's files beside it; returns its bytes."""
    size = path.stat().st_size if path.exists() else 0
    for end in ("", "-wal", "-shm"):
        path.with_name(path.name + end).unlink(missing_ok=True)
    return size


def default_cache_dir() -> Path:
    """Return ``$PALMETTE_CACHE``, else palmette's folder among the user's caches."""
    if given := os.environ.get("PALMETTE_CACHE"):
        return Path(given).expanduser()
    if sys.platform == "darwin":
        return Path("~/Library/Caches/palmette").expanduser()
    windows = sys.platform == "win32"
    name, usual = ("LOCALAPPDATA", "~/AppData/Local") if windows else ("XDG_CACHE_HOME", "~/.cache")
    folder = Path(os.environ.get(name) or usual).expanduser() / "palmette"
    return folder / "cache" if windows else folder


def _token_states(
    encoder: Encoder,
    texts: Sequence[str],
    rows: Mapping[bytes, int],
    kind: Kind,
    outputs: Literal["tokens", "layers"],
) -> dict[bytes, bytes]:
    """Encode texts at ``rows``: by key their states without padding, [T, d] or [T, L + 1, d]."""
    keys, positions, made = list(rows), list(rows.values()), {}
    for batch, states in encoder.iter_states(
        [texts[row] for row in positions], kind=kind, outputs=(outputs,), positions=positions
    ):
        value = (
            states.tokens if states.layers is None else states.layers.transpose(1, 2)
        )  # [B, T, (L + 1,) d]
        assert value is not None
        assert states.mask is not None
        with np.errstate(over="ignore"):  # infinity is looked for below
            halves = value.cpu().numpy().astype(np.float16)
        for i, half, mask in zip(batch, halves, states.mask.cpu().numpy(), strict=True):
            if not np.isfinite(half[mask]).all():
                where = f"{outputs} of text {positions[i]}"
                raise EncodingError(f"{where} exceed half precision: {texts[positions[i]]!r:.80}")
            made[keys[i]] = half[mask].tobytes()
    return made
