"""Encodings kept on disk, so that a text is encoded once."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import sqlite3
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import Floats, Rows, to_numpy
from palmette.config import check_path
from palmette.encoder.base import Encoder, Kind, progress_bar
from palmette.encoder.cache.database import CacheEntry, EncodingDatabase
from palmette.encoder.sentences import Sentences
from palmette.encoder.sentences.splitting import VERSION
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
        given = os.environ.get("PALMETTE_CACHE_GB", "10") if max_gb is None else max_gb
        try:
            self.max_bytes = int(float(given) * 1e9)
        except (TypeError, ValueError, OverflowError):
            self.max_bytes = -1
        if self.max_bytes < 0:
            name = "PALMETTE_CACHE_GB" if max_gb is None else "max_gb"
            raise ConfigError(f"{name} must be a number of gigabytes of at least 0, got {shown(given)}")
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
            found = Sentences.from_parts([sentences[row] for row in range(len(pooled))], plain.dimension)
        else:
            encode = partial(self._encode, plain, kind="document", batch_size=batch_size, progress=progress)
            pooled, found = plain.pooled_sentences(texts, above, encode)
        return encoder.map(pooled, "document"), encoder.map_sentences(found)

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

        Data of a text are its vector (float32), then the spans (int32) and vectors (int8) of its sentences.
        """
        whole = kind == "document" and encoder.has_offsets
        output = "sentences" if whole else "pooled"
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

        missing = {key: places[0] for key, places in rows.items()}
        for key, data in self._database.get(rows):
            take(key, data)
            del missing[key]
        longest = sorted(missing.values(), key=lambda row: -len(checked[row]))
        with progress_bar("encoding", len(longest), progress) as bar:
            step = encoder.batch_size if encoder.remote else _TEXTS_PER_WRITE
            for start in range(0, len(longest), step):
                some = longest[start : start + step]
                made: dict[bytes, bytes] = {}
                try:
                    for row, data in _made(encoder, checked, some, kind, whole, above, batch_size):
                        made[keys[row]] = data
                finally:  # also where one of several requests fails: those that were answered are paid
                    self._put(made, encoder.name, output)
                for key, data in made.items():
                    take(key, data)
                bar.update(len(some))
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
            with (
                tempfile.TemporaryFile(dir=self.root) as flat,
                progress_bar("encoding tokens", len(keys), progress) as bar,
            ):
                for start in range(0, len(keys), step):
                    part = keys[start : start + step]
                    states = dict(self._database.get(set(part)))
                    new = {key: start + i for i, key in enumerate(part) if key not in states}
                    made = _token_states(encoder, checked, new, kind, outputs)
                    self._database.put(made, encoder.name, outputs)
                    states |= made
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

    def _put(self, made: Mapping[bytes, bytes], encoder: str, output: str) -> None:
        """Write encodings; where that fails a warning says so."""
        try:
            self._database.put(made, encoder, output)
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
    if given := os.environ.get("PALMETTE_CACHE"):
        return Path(given).expanduser()
    if sys.platform == "darwin":
        return Path("~/Library/Caches/palmette").expanduser()
    windows = sys.platform == "win32"
    name, usual = ("LOCALAPPDATA", "~/AppData/Local") if windows else ("XDG_CACHE_HOME", "~/.cache")
    folder = Path(os.environ.get(name) or usual).expanduser() / "palmette"
    return folder / "cache" if windows else folder


def _made(
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
    keys, positions, made = list(rows), list(rows.values()), {}
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
            made[keys[i]] = half[mask].tobytes()
    return made
