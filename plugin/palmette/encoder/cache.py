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
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from palmette.config import check_path
from palmette.encoder import cache_files
from palmette.encoder.base import Copies, Encoder, Floats, Kind, Output, States
from palmette.encoder.cache_files import CacheEntry, EncodingFile
from palmette.encoder.sentences import VERSION, Sentences, whole_texts
from palmette.errors import ConfigError, EncodingError, ReadOnlyError, StorageFullError, shown

Halves = NDArray[np.float16]
_KEPT = 2_048  # texts encoded between two writes, which is the most that a killed run loses


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
        self.root = check_path(default_cache_dir() if root is None else root)
        given = os.environ.get("PALMETTE_CACHE_GB", "10") if max_gb is None else max_gb
        try:
            self.max_bytes = int(float(given) * 1e9)
        except (TypeError, ValueError, OverflowError):
            self.max_bytes = -1
        if self.max_bytes < 0:
            name = "PALMETTE_CACHE_GB" if max_gb is None else "max_gb"
            raise ConfigError(f"{name} must be a number of gigabytes of at least 0, got {shown(given)}")

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
        return encoder.map(self._encode(encoder.plain, texts, kind, batch_size, progress, None), kind)

    def encode_sentences(
        self,
        encoder: Encoder,
        texts: Sequence[str],
        *,
        batch_size: int | None = None,
        progress: bool | None = None,
    ) -> tuple[Floats, Sentences]:
        """Read pooled vectors [N, d] and sentences of documents, or encode and keep them."""
        if encoder.plain is not encoder:
            pooled, found = self.encode_sentences(
                encoder.plain, texts, batch_size=batch_size, progress=progress
            )
            return encoder.map(pooled, "document"), encoder.map_sentences(found)
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
                    states = {key: data for key, data, _ in file.get(set(part), size)}
                    new = {key: start + i for i, key in enumerate(part) if key not in states}
                    made = _token_states(encoder, checked, new, kind, outputs)
                    file.put(made)
                    cache_files.trim(self._folder, self.max_bytes)
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
    ) -> tuple[list[str], list[bytes], EncodingFile]:
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
            "sentences": VERSION if whole else None,
        }
        text = json.dumps(facts, sort_keys=True)
        name = f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.sqlite"
        return checked, _keys(checked), EncodingFile(self._folder / name, encoder.name, text)

    def _keep(
        self, file: EncodingFile, data: Mapping[bytes, bytes], sentences: Mapping[bytes, bytes]
    ) -> None:
        try:
            file.put(data, sentences)
            cache_files.trim(self._folder, self.max_bytes)
        except (OSError, sqlite3.Error) as error:
            warnings.warn(f"encodings are not kept: {self._unwritable(error)}", stacklevel=4)

    # -- size -----------------------------------------------------------------------------------------------

    def entries(self) -> list[CacheEntry]:
        """List the files of encodings, most recently used first."""
        return sorted(cache_files.entries(self._folder), key=lambda entry: -entry.used)

    def clear(self, encoder: str | None = None) -> int:
        """Delete all encodings, or those of the encoder of this name; returns the bytes freed."""
        return cache_files.clear(self._folder, encoder)

    @property
    def _folder(self) -> Path:
        return self.root / "encodings"

    def _unwritable(self, error: Exception) -> StorageFullError | ReadOnlyError:
        fix = "set PALMETTE_CACHE to a folder with room that you may write"
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        if full or getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
            return StorageFullError(f"no room left for encodings in {self.root}; {fix}")
        return ReadOnlyError(f"encodings cannot be written to {self.root} ({error}); {fix}")


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

    @property
    def plain(self) -> Encoder:  # noqa: D102
        return self if self.encoder.plain is self.encoder else self.encoder.plain

    def map(self, vectors: Floats, kind: Kind) -> Floats:  # noqa: D102
        return self.encoder.map(vectors, kind)

    def map_sentences(self, found: Sentences) -> Sentences:  # noqa: D102
        return self.encoder.map_sentences(found)

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
                raise EncodingError(f"{where} exceed half precision: {shown(texts[positions[i]])}")
            made[keys[i]] = half[mask].tobytes()
    return made
