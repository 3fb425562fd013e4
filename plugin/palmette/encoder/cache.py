"""Encodings kept on disk, so that a text is encoded once: an SQLite database, the cache, and an encoder that uses it.

    ROOT/palmette-cache.sqlite   texts (key, crc, batch, data), batches (id, encoder, output, used, bytes)

A key is the first 16 bytes of a SHA-256 over all that determines the data; the CRC-32 is that of key and data. Texts
are written in batches, and the batches that were used least recently are deleted when the database exceeds its limit.
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
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from palmette.arrays import Floats, Rows, to_numpy
from palmette.config import check_path
from palmette.encoder.base import Encoder, Kind, Output, WrappedEncoder, inner, text_bar, with_titles
from palmette.encoder.sentences import Sentences, whole_texts
from palmette.encoder.sentences.splitting import VERSION
from palmette.encoder.states import States
from palmette.errors import ConfigError, EncodingError, ReadOnlyError, StorageFullError, shown

Halves = NDArray[np.float16]
_TEXTS_PER_WRITE = 2_048  # texts encoded between two writes, which is the most that a killed run loses


class EncodingCache:
    """A database of encodings, found by encoder, prompt, token limit, precision, output and text.

    The encoder's fingerprint is part of the key: another model, prompt or limit never meets these encodings.
    Threads and processes of one machine may use it at once. Damaged encodings are made again, with a warning; a
    folder that cannot be written costs a warning, and nothing is kept.

    Args:
        root: Its folder; by default ``$PALMETTE_CACHE``, or palmette's folder among the user's caches.
        max_gb: Limit of its size, beyond which the texts used least recently are deleted; by default
            ``$PALMETTE_CACHE_GB``, or 10.
    """

    def __init__(self, root: str | Path | None = None, *, max_gb: float | None = None) -> None:
        self.root = check_path(default_cache_dir() if root is None else root)
        limit = os.environ.get("PALMETTE_CACHE_GB", "10") if max_gb is None else max_gb
        try:
            self.max_bytes = int(float(limit) * 1e9)
        except (TypeError, ValueError, OverflowError):
            self.max_bytes = -1
        if self.max_bytes < 0:
            name = "PALMETTE_CACHE_GB" if max_gb is None else "max_gb"
            raise ConfigError(f"{name} must be a number of gigabytes of at least 0, got {shown(limit)}")
        self._database = EncodingDatabase(self.root, self.max_bytes)

    def encode(
        self,
        encoder: Encoder,
        texts: Sequence[str],
        *,
        kind: Kind = "document",
        batch_size: int | None = None,
        progress: bool | None = None,
    ) -> Floats:
        """Read pooled vectors [N, d], or encode and keep them; documents with their sentences.

        Of an encoder in a learned space the vectors of :attr:`Encoder.plain` are kept.
        """
        return encoder.map(self._encode(encoder.plain, texts, kind, batch_size, progress), kind)

    def encode_sentences(
        self,
        encoder: Encoder,
        texts: Sequence[str],
        *,
        batch_size: int | None = None,
        progress: bool | None = None,
        above: Sequence[str] = (),
    ) -> tuple[Floats, Sentences]:
        """Read pooled vectors [N, d] and sentences of documents, or encode and keep them."""
        plain, sentences = encoder.plain, dict[int, bytes]()
        if plain.has_offsets:
            pooled = self._encode(plain, texts, "document", batch_size, progress, sentences, above)
            own = Sentences.from_parts([sentences[row] for row in range(len(pooled))], plain.dimension)
        else:
            pooled = self._encode(plain, with_titles(texts, above), "document", batch_size, progress)
            own = whole_texts(texts, pooled)
        return encoder.map(pooled, "document"), encoder.map_sentences(own)

    def _encode(
        self,
        encoder: Encoder,
        texts: Sequence[str],
        kind: Kind,
        batch_size: int | None,
        progress: bool | None,
        sentences: dict[int, bytes] | None = None,
        above: Sequence[str] = (),
    ) -> Floats:
        """Return pooled vectors [N, d]; ``sentences``, where given, gets each text's by row.

        Data of a text are its vector (float32), then the spans (int32) and vectors (int8) of its sentences. ``above``
        are the titles and headings that each text is encoded under, as in :meth:`Encoder.encode_sentences`.
        """
        # 1. Equal texts have one key, and are looked up or encoded once.
        with_sentences = kind == "document" and encoder.has_offsets
        output = "sentences" if with_sentences else "pooled"
        checked, keys = self._keys(encoder, texts, kind, output, above)
        out, size = np.empty((len(keys), encoder.dimension), np.float32), 4 * encoder.dimension
        rows: dict[bytes, list[int]] = {}
        for row, key in enumerate(keys):
            rows.setdefault(key, []).append(row)

        def take(key: bytes, data: bytes) -> None:
            vector = np.frombuffer(data, np.float32, encoder.dimension)
            for row in rows[key]:
                out[row] = vector
                if sentences is not None:
                    sentences[row] = data[size:]

        # 2. What the database knows.
        missing = {key: places[0] for key, places in rows.items()}
        for key, data in self._database.get(rows):
            take(key, data)
            del missing[key]
        # 3. The others are encoded, longest first, and written batch by batch, so that a killed run loses one batch.
        longest = sorted(missing.values(), key=lambda row: -len(checked[row]))
        with text_bar("encoding", len(longest), progress) as bar:
            step = encoder.batch_size if encoder.remote else _TEXTS_PER_WRITE
            for start in range(0, len(longest), step):
                batch = longest[start : start + step]
                new: dict[bytes, bytes] = {}
                try:
                    for row, data in _encoded(encoder, checked, batch, kind, with_sentences, above, batch_size):
                        new[keys[row]] = data
                finally:  # also where one of several requests fails: those that were answered are paid
                    self._put(new, encoder.name, output)
                for key, data in new.items():
                    take(key, data)
                bar.update(len(batch))
        return out

    def encode_tokens(
        self,
        encoder: Encoder,
        texts: Sequence[str],
        *,
        kind: Kind = "document",
        outputs: Literal["tokens", "layers"] = "tokens",
        progress: bool | None = None,
    ) -> tuple[Halves, Rows]:
        """Return token states ``flat``, mapped from a temporary file, and where each text begins in it, ``offsets``.

        ``flat`` is float16 and read-only: [Σ T, d], or [Σ T, L + 1, d] for ``layers``. Text i has
        ``flat[offsets[i] : offsets[i + 1]]``.
        """
        encoder = encoder.plain  # a learned space leaves token states alone
        checked, keys = self._keys(encoder, texts, kind, outputs)
        layers = (encoder.num_layers + 1,) if outputs == "layers" else ()
        shape = (*layers, encoder.hidden_size)
        step = 1024 if outputs == "tokens" else 128  # texts whose states are held in memory
        ends = [0]
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.root) as flat, text_bar("encoding tokens", len(keys), progress) as bar:
                for start in range(0, len(keys), step):
                    part = keys[start : start + step]
                    states = dict(self._database.get(set(part)))
                    new = {key: start + i for i, key in enumerate(part) if key not in states}
                    encoded = _token_states(encoder, checked, new, kind, outputs)
                    self._database.put(encoded, encoder.name, outputs)
                    states |= encoded
                    for key in part:
                        flat.write(states[key])
                        ends.append(flat.tell())
                    bar.update(len(part))
                flat.flush()
                offsets = np.array(ends, np.int64) // (2 * math.prod(shape))
                if offsets[-1] == 0:  # an empty file cannot be mapped
                    return np.zeros((0, *shape), np.float16), offsets
                return np.memmap(flat, np.float16, "r", shape=(int(offsets[-1]), *shape)), offsets
        except (OSError, sqlite3.Error) as error:
            raise self._unwritable(error) from error

    def entries(self) -> list[CacheEntry]:
        """List what is kept by encoder and output, most recently used first."""
        return self._database.entries()

    def clear(self, encoder: str | None = None) -> int:
        """Delete all encodings, or those of the encoder of this name; returns the bytes freed."""
        return self._database.clear(encoder)

    def __repr__(self) -> str:
        return f"EncodingCache({str(self.root)!r})"

    def _keys(
        self, encoder: Encoder, texts: Sequence[str], kind: Kind, output: str, above: Sequence[str] = ()
    ) -> tuple[list[str], list[bytes]]:
        """Return checked texts and their keys."""
        if not encoder.frozen:
            raise ConfigError(f"encoder {encoder.name!r} is being trained: its encodings change and are not kept")
        facts = {
            "format": 4,
            "fingerprint": encoder.fingerprint,
            "max_length": encoder.max_length,
            "precision": encoder.precision,
            "prompt": encoder.variant(kind),
            "output": output,
            "sentences": VERSION if output == "sentences" else None,
        }
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
        checked, keys = encoder.check(texts, kind, cut=output != "sentences"), []
        for text, title in zip_longest(checked, encoder.check(above, kind, cut=False), fillvalue=""):
            own = digest.copy()
            own.update(b"\xff".join(part.encode() for part in (title, text)) if title else text.encode())
            keys.append(own.digest()[:16])
        return checked, keys

    def _put(self, new: Mapping[bytes, bytes], encoder: str, output: str) -> None:
        """Write encodings; where that fails a warning says so."""
        try:
            self._database.put(new, encoder, output)
        except (OSError, sqlite3.Error) as error:
            warnings.warn(f"encodings are not kept: {self._unwritable(error)}", stacklevel=4)

    def _unwritable(self, error: Exception) -> StorageFullError | ReadOnlyError:
        fix = "set PALMETTE_CACHE to a folder with room that you may write"
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        if full or getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
            return StorageFullError(f"no room left for encodings in {self.root}; {fix}")
        return ReadOnlyError(f"encodings cannot be written to {self.root} ({error}); {fix}")


def default_cache_dir() -> Path:
    """Return ``$PALMETTE_CACHE``, else palmette's folder among the user's caches."""
    if chosen := os.environ.get("PALMETTE_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path("~/Library/Caches/palmette").expanduser()
    windows = sys.platform == "win32"
    name, usual = ("LOCALAPPDATA", "~/AppData/Local") if windows else ("XDG_CACHE_HOME", "~/.cache")
    folder = Path(os.environ.get(name) or usual).expanduser() / "palmette"
    return folder / "cache" if windows else folder


def _encoded(
    encoder: Encoder,
    texts: Sequence[str],
    rows: Sequence[int],
    kind: Kind,
    whole: bool,
    above: Sequence[str],
    batch_size: int | None,
) -> Iterator[tuple[int, bytes]]:
    """Encode texts at ``rows``: the row of each, and its vector, with its sentences if the texts are ``whole``."""
    new, options = [texts[row] for row in rows], dict[str, Any](batch_size=batch_size, positions=rows)
    if whole:
        titles = [above[row] for row in rows if above]
        pooled, sentences = encoder.encode_sentences(new, above=titles, **options)
        for row, vector, part in zip(rows, pooled, sentences.parts(), strict=True):
            yield row, vector.tobytes() + part
        return
    for batch, states in encoder.iter_states(new, kind=kind, **options):
        for place, vector in zip(batch.tolist(), to_numpy(states.pooled), strict=True):
            yield rows[place], vector.astype(np.float32).tobytes()


def _token_states(
    encoder: Encoder, texts: Sequence[str], rows: Mapping[bytes, int], kind: Kind, outputs: Literal["tokens", "layers"]
) -> dict[bytes, bytes]:
    """Encode texts at ``rows``: by key their states without padding, [T, d] or [T, L + 1, d]."""
    keys, positions, by_key = list(rows), list(rows.values()), {}
    for batch, states in encoder.iter_states(
        [texts[row] for row in positions], kind=kind, outputs=(outputs,), positions=positions
    ):
        # [B, T, (L + 1,) d]
        value = to_numpy(states.tokens) if states.layers is None else to_numpy(states.layers).swapaxes(1, 2)
        with np.errstate(over="ignore"):  # infinity is looked for below
            halves = value.astype(np.float16)
        for i, half, mask in zip(batch, halves, to_numpy(states.mask), strict=True):
            if not np.isfinite(half[mask]).all():
                where = f"{outputs} of text {positions[i]}"
                raise EncodingError(f"{where} exceed half precision: {shown(texts[positions[i]])}")
            by_key[keys[i]] = half[mask].tobytes()
    return by_key


class CachedEncoder(WrappedEncoder):
    """An encoder whose vectors of texts and sentences are kept: what training has encoded, indexing need not again.

    Queries, which are rarely repeated, tokens and layers go straight to the encoder. It takes an encoder's place
    anywhere.
    """

    forward, encode_queries = inner("forward"), inner("encode_queries")
    map, map_sentences, space_weights = inner("map"), inner("map_sentences"), inner("space_weights")

    def __init__(self, encoder: Encoder, cache: EncodingCache | str | Path | None = None) -> None:
        super().__init__(encoder)
        self.cache = cache if isinstance(cache, EncodingCache) else EncodingCache(cache)

    @property
    def plain(self) -> Encoder:  # noqa: D102
        return self if self.encoder.plain is self.encoder else self.encoder.plain

    def encode(self, texts: Sequence[str], **options: Any) -> Floats:
        """Return pooled vectors [N, d], from the cache where they are known."""
        return self.cache.encode(self.encoder, texts, **{"progress": False, **options})

    def iter_states(
        self, texts: Sequence[str], *, kind: Kind = "document", outputs: Sequence[Output] = ("pooled",), **options: Any
    ) -> Iterator[tuple[Rows, States]]:
        """Yield pooled vectors of documents from the cache; all else from the encoder."""
        if tuple(outputs) != ("pooled",) or kind == "query":
            yield from self.encoder.iter_states(texts, kind=kind, outputs=outputs, **options)
            return
        known = {name: options[name] for name in ("batch_size", "progress") if name in options}
        vectors = self.encode(texts, **known)
        for start in range(0, len(texts), 1024):
            rows = np.arange(start, min(start + 1024, len(texts)))
            yield rows, States(vectors[rows])

    def encode_sentences(  # noqa: D102
        self, texts: Sequence[str], *, positions: Sequence[int] | None = None, **options: Any
    ) -> tuple[Floats, Sentences]:
        return self.cache.encode_sentences(self.encoder, texts, **{"progress": False, **options})


_KEYS = 5_000  # of one query
_PAGE = 16_384  # bytes; read almost twice as fast as pages of 4096
_PATIENCE = 60.0  # seconds to wait for another writer
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)  # the last: no such table
_SCHEMA = f"""
    PRAGMA page_size = {_PAGE};
    PRAGMA auto_vacuum = INCREMENTAL;
    PRAGMA journal_mode = WAL;
    CREATE TABLE batches (id INTEGER PRIMARY KEY, encoder TEXT, output TEXT, used INTEGER, bytes INTEGER);
    CREATE TABLE texts (
        key BLOB PRIMARY KEY, crc INTEGER, batch INTEGER REFERENCES batches ON DELETE CASCADE, data BLOB
    );
    CREATE INDEX texts_of_batches ON texts (batch);
"""


class CacheEntry(NamedTuple):
    """Texts of an encoder kept for an output, their bytes, and when they were last used, in seconds."""

    encoder: str
    output: str
    texts: int
    bytes: int
    used: int


class EncodingDatabase:
    """Encodings by key; threads and processes may use the database at once."""

    def __init__(self, root: Path, max_bytes: int) -> None:
        self.root, self.path, self.max_bytes = root, root / "palmette-cache.sqlite", max_bytes

    def get(self, keys: Collection[bytes]) -> Iterator[tuple[bytes, bytes]]:
        """Yield known keys and their data. Damaged data are skipped, with a warning."""
        key_list, left, batches = list(keys), set(keys), set[int]()
        if not self.path.exists():
            return
        try:
            with self._connect() as connection:
                step = min(_KEYS, connection.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER))
                damaged = 0
                for start in range(0, len(key_list), step):
                    chunk = key_list[start : start + step]
                    marks = ",".join("?" * len(chunk))
                    query = f"SELECT key, crc, batch, data FROM texts WHERE key IN ({marks})"
                    for key, crc, batch, data in connection.execute(query, chunk):
                        if key in left and isinstance(data, bytes) and zlib.crc32(data, zlib.crc32(key)) == crc:
                            left.remove(key)
                            batches.add(batch)
                            yield key, data
                        else:
                            damaged += 1
                if damaged:
                    self._warn(f"{damaged} texts have been altered")
                self._mark(connection, batches)
        except sqlite3.Error as error:
            self._discard(error)

    def put(self, rows: Mapping[bytes, bytes], encoder: str, output: str) -> None:
        """Write data by key, as one batch; batches used least recently go where the limit is exceeded."""
        if not rows:
            return
        for last in (False, True):
            if not self.path.exists():
                self._create()
            try:
                with self._connect() as connection:
                    with connection:
                        batch = connection.execute(
                            "INSERT INTO batches (encoder, output, used, bytes) VALUES (?, ?, ?, ?)",
                            (encoder, output, int(time.time()), sum(map(len, rows.values()))),
                        ).lastrowid
                        values = (
                            (key, zlib.crc32(rows[key], zlib.crc32(key)), batch, rows[key]) for key in sorted(rows)
                        )
                        connection.executemany("INSERT OR REPLACE INTO texts VALUES (?, ?, ?, ?)", values)
                    [pages] = connection.execute("PRAGMA page_count").fetchone()
                    if (excess := pages * _PAGE - self.max_bytes) > 0:  # a tenth is to be free afterwards
                        oldest = "SELECT id, SUM(bytes) OVER (ORDER BY used, id) - bytes AS before FROM batches"
                        condition = f"id IN (SELECT id FROM ({oldest}) WHERE before < ?)"
                        _delete(connection, condition, excess + self.max_bytes // 10)
                return
            except sqlite3.Error as error:
                if last or not self._discard(error):
                    raise

    def entries(self) -> list[CacheEntry]:
        """List what is kept, most recently used first."""
        with contextlib.suppress(sqlite3.Error), self._connect() as connection:
            texts = "(SELECT COUNT(*) FROM texts WHERE batch = id)"
            rows = connection.execute(
                f"SELECT encoder, output, SUM({texts}), SUM(bytes), MAX(used) FROM batches "
                "GROUP BY encoder, output ORDER BY MAX(used) DESC"
            )
            return [CacheEntry(*row) for row in rows]
        return []

    def clear(self, encoder: str | None) -> int:
        """Delete all encodings, or those of the encoder of this name; returns the bytes freed."""
        if encoder is None:
            return self._remove()
        if any(entry.encoder == encoder for entry in self.entries()):
            with contextlib.suppress(sqlite3.Error), self._connect() as connection:
                return _delete(connection, "encoder = ?", encoder)
        return 0

    @contextlib.contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        """Open the database, which exists; in a folder that cannot be written, without SQLite's files beside it."""
        mode = "mode=rw" if os.access(self.root, os.W_OK) else "immutable=1"
        address = f"{self.path.absolute().as_uri()}?{mode}"
        with contextlib.closing(sqlite3.connect(address, _PATIENCE, uri=True)) as connection:
            connection.execute("PRAGMA synchronous=NORMAL")
            yield connection

    def _mark(self, connection: sqlite3.Connection, batches: set[int]) -> None:
        """Note that batches are in use, once an hour; another writer, or a folder that is only read, may prevent it."""
        now = int(time.time())
        with contextlib.suppress(sqlite3.OperationalError):
            connection.execute("PRAGMA busy_timeout = 1000")
            with connection:
                rows = [(now, batch, now - 3600) for batch in batches]
                connection.executemany("UPDATE batches SET used = ? WHERE id = ? AND used < ?", rows)

    def _create(self) -> None:
        """Make an empty database, unless there is one: beside its place, so that a kill leaves none half made."""
        self.root.mkdir(parents=True, exist_ok=True)
        with FileLock(self.root / "palmette-cache.lock", timeout=_PATIENCE):
            if self.path.exists():
                return
            self._remove()
            new = self.path.with_suffix(".sqlite-new")
            with contextlib.closing(sqlite3.connect(new)) as connection:
                connection.executescript(_SCHEMA)
            new.replace(self.path)

    def _discard(self, error: sqlite3.Error) -> bool:
        """Delete a damaged or foreign database, with a warning; return False for any other error."""
        if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF not in _DAMAGED:
            return False
        with contextlib.suppress(OSError):
            self._remove()
        self._warn(str(error))
        return True

    def _remove(self) -> int:
        """Delete the database, and SQLite's files beside it; returns their bytes."""
        files = [*self.root.glob(f"{self.path.name}*")]
        freed = sum(path.stat().st_size for path in files)
        for path in files:
            path.unlink(missing_ok=True)
        return freed

    def _warn(self, why: str) -> None:
        warnings.warn(f"cached encodings {self.path} are damaged ({why}); they are made again", stacklevel=4)


def _delete(connection: sqlite3.Connection, where: str, value: object) -> int:
    """Delete batches and their texts, and free their pages; returns the bytes of their data."""
    connection.execute("PRAGMA foreign_keys=ON")  # only here: it makes inserting slower
    with connection:
        rows = connection.execute(f"DELETE FROM batches WHERE {where} RETURNING bytes", [value]).fetchall()
    connection.executescript("PRAGMA incremental_vacuum")  # execute() would free one page
    return sum(size for [size] in rows)
