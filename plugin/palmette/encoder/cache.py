"""Encodings kept on disk, so that a text is encoded once: one SQLite file per encoder and output.

    ROOT/encodings/HASH.sqlite   about (encoder, facts), texts (key, crc, data)

A key is the first 16 bytes of a text's SHA-256; the CRC-32 is that of key and data. Data are the pooled vector
(float32), or the states of the text's tokens one after the other (float16).
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
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from filelock import FileLock
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from palmette.encoder.base import Copies, Encoder, Floats, Kind, Output, States
from palmette.encoder.sentences import Sentences
from palmette.errors import ConfigError, EncodingError, ReadOnlyError, StorageFullError

Halves = NDArray[np.float16]
_KEPT = 8_192  # vectors encoded between two writes, which is the most that a killed run loses
_KEYS = 5_000  # of one query
_PATIENCE = 60.0  # seconds to wait for another writer
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)  # the last: no such table


class EncodingCache:
    """A folder of encodings, found by encoder, prompt, token limit, precision, output and text.

    The encoder's fingerprint is part of the key: another model, prompt or limit never meets these entries.
    Threads and processes of one machine may use the folder at once. Damaged encodings are made again, with a
    warning; a folder that cannot be written costs a warning, and nothing is kept. By default ``root`` is
    ``$PALMETTE_CACHE``, or palmette's folder among the user's caches.
    """

    def __init__(self, root: str | Path | None = None) -> None:
        self.root = Path(root or default_cache_dir()).expanduser()

    def encode(
        self,
        encoder: Encoder,
        texts: Sequence[str],
        *,
        kind: Kind = "document",
        batch_size: int | None = None,
        progress: bool | None = None,
    ) -> Floats:
        """Read pooled vectors [N, d], or encode and keep them; those of :attr:`Encoder.plain` are kept."""
        if encoder.plain is not encoder:
            how: dict[str, Any] = {"kind": kind, "batch_size": batch_size, "progress": progress}
            return encoder.map(self.encode(encoder.plain, texts, **how), kind)
        checked, keys, file = self._open(encoder, texts, kind, "pooled")
        out = np.empty((len(keys), encoder.dimension), np.float32)
        first = {key: row for row, key in reversed(list(enumerate(keys)))}
        missing = dict(first)
        for key, data in file.get(first, 4 * encoder.dimension):
            out[missing.pop(key)] = np.frombuffer(data, np.float32)
        rows, waiting = sorted(missing.values()), list[int]()
        new = [checked[row] for row in rows]
        for batch, states in encoder.iter_states(
            new, kind=kind, batch_size=batch_size, progress=progress, positions=rows
        ):
            found = [rows[i] for i in batch]
            assert states.pooled is not None
            out[found] = states.pooled.cpu().numpy()
            waiting += found
            if len(waiting) >= _KEPT:
                self._keep(file, keys, out, waiting)
                waiting = []
        self._keep(file, keys, out, waiting)
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
        encoder = encoder.plain  # a learned space leaves token states alone
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
                    states = dict(file.get(set(part), size))
                    new = {key: start + i for i, key in enumerate(part) if key not in states}
                    made = _token_states(encoder, checked, new, kind, outputs)
                    file.put(made)
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
        checked = encoder.check(texts, kind)
        keys = [hashlib.sha256(text.encode()).digest()[:16] for text in checked]
        facts = {
            "format": 2,
            "fingerprint": encoder.fingerprint,
            "max_length": encoder.max_length,
            "precision": encoder.precision,
            "prompt": encoder.variant(kind),
            "output": output,
        }
        text = json.dumps(facts, sort_keys=True)
        name = f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.sqlite"
        return checked, keys, _File(self.root / "encodings" / name, encoder.name, text)

    def _keep(self, file: _File, keys: Sequence[bytes], vectors: Floats, rows: Sequence[int]) -> None:
        try:
            file.put({keys[row]: vectors[row].tobytes() for row in rows})
        except (OSError, sqlite3.Error) as error:
            warnings.warn(f"encodings are not kept: {self._unwritable(error)}", stacklevel=3)

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

    def get(self, keys: Iterable[bytes], size: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield known keys and their data, a multiple of ``size`` bytes; damaged data are skipped, with a warning."""
        wanted, damaged = list(keys), 0
        left = set(wanted)
        if not self.path.exists():
            return
        try:
            with contextlib.closing(self._open()) as connection:
                step = min(_KEYS, connection.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER))
                for start in range(0, len(wanted), step):
                    some = wanted[start : start + step]
                    query = f"SELECT key, crc, data FROM texts WHERE key IN ({','.join('?' * len(some))})"
                    for key, crc, data in connection.execute(query, some):
                        whole = key in left and isinstance(data, bytes) and not len(data) % size
                        if whole and zlib.crc32(data, zlib.crc32(key)) == crc:
                            left.remove(key)
                            yield key, data
                        else:
                            damaged += 1
        except sqlite3.Error as error:
            self._set_aside(error)
        if damaged:
            self._warn(f"{damaged} texts have been altered")

    def put(self, rows: Mapping[bytes, bytes]) -> None:
        if not rows:
            return
        values = [(key, zlib.crc32(rows[key], zlib.crc32(key)), rows[key]) for key in sorted(rows)]
        for last in (False, True):
            if not self.path.exists():
                self._create()
            try:
                with contextlib.closing(self._open()) as connection, connection:
                    connection.executemany("INSERT OR REPLACE INTO texts VALUES (?, ?, ?)", values)
                return
            except sqlite3.Error as error:
                if last or not self._set_aside(error):
                    raise

    def _open(self) -> sqlite3.Connection:
        """Open a file that exists; in a folder that cannot be written, without SQLite's files beside it."""
        how = "mode=rw" if os.access(self.path.parent, os.W_OK) else "immutable=1"
        connection = sqlite3.connect(f"{self.path.absolute().as_uri()}?{how}", _PATIENCE, uri=True)
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
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("CREATE TABLE about (encoder TEXT, facts TEXT)")
                connection.execute("CREATE TABLE texts (key BLOB PRIMARY KEY, crc INTEGER, data BLOB)")
                connection.execute("INSERT INTO about VALUES (?, ?)", (self.encoder, self.facts))
            new.replace(self.path)

    def _set_aside(self, error: sqlite3.Error) -> bool:
        """Rename a damaged or foreign file, with a warning; return False for any other error."""
        if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF not in _DAMAGED:
            return False
        with contextlib.suppress(OSError), FileLock(self.lock, timeout=_PATIENCE):
            self.path.replace(self.path.with_suffix(".damaged"))
            for end in ("-wal", "-shm"):
                self.path.with_name(self.path.name + end).unlink(missing_ok=True)
        self._warn(str(error))
        return True

    def _warn(self, why: str) -> None:
        warnings.warn(f"cached encodings {self.path} are damaged ({why}); they are made again", stacklevel=4)


class CachedEncoder(Encoder):
    """An encoder whose pooled vectors are kept: what training has encoded, indexing need not encode again.

    Queries, tokens and layers go straight to the encoder. It takes an encoder's place anywhere.
    """

    def __init__(self, encoder: Encoder, cache: EncodingCache | str | Path | None = None) -> None:
        self.__dict__.update(encoder.__dict__)  # the same locks, limits and device
        self.encoder = encoder
        self.cache = cache if isinstance(cache, EncodingCache) else EncodingCache(cache)

    def forward(  # noqa: D102
        self, texts: Sequence[str], kind: Kind, outputs: frozenset[Output], depth: int | None = None
    ) -> States:
        return self.encoder.forward(texts, kind, outputs, *([] if depth is None else [depth]))

    @property
    def plain(self) -> Encoder:  # noqa: D102
        return self if self.encoder.plain is self.encoder else self.encoder.plain

    def map(self, vectors: Floats, kind: Kind) -> Floats:  # noqa: D102
        return self.encoder.map(vectors, kind)

    def space_weights(self) -> dict[str, Tensor]:  # noqa: D102
        return self.encoder.space_weights()

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
        self, texts: Sequence[str], *, batch_size: int | None = None, progress: bool | None = False
    ) -> tuple[Floats, Sentences]:
        return self.encoder.encode_sentences(texts, batch_size=batch_size, progress=progress)

    def encode_queries(self, texts: Sequence[str]) -> Floats:
        """Encode queries: they are rarely repeated, so they bypass the cache."""
        return self.encoder.encode_queries(texts)


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
