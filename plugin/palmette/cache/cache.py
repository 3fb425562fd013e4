"""Encodings kept on disk, so that a text meets an encoder once."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from palmette.cache.files import KEY_BYTES, Drawer, Shard, ShardWriter, folder_size
from palmette.encoder import Encoder, Kind
from palmette.errors import ConfigError, EncodingError, ReadOnlyError, StorageFullError

if TYPE_CHECKING:
    from palmette.encoder import States

__all__ = ["CacheEntry", "EncodingCache", "default_cache_dir"]

Floats = NDArray[np.float32]
Halves = NDArray[np.float16]
_SHARD = 8_192  # vectors encoded between two writes: what a killed run may lose


@dataclass(frozen=True)
class CacheEntry:
    """What the cache holds of one encoder and output."""

    name: str
    output: str
    bytes: int
    path: Path


class EncodingCache:
    """A folder of encodings, found by encoder, prompt, token limit, precision, output and text.

    The encoder's fingerprint is part of the key: another model, prompt or limit never meets these entries.
    Any number of threads and processes may use the folder at once. A damaged part is dropped with a warning
    and encoded again; a folder that cannot be written costs a warning, and nothing is kept.

    Args:
        root: The folder; by default ``$PALMETTE_CACHE``, or the user's cache folder.
    """

    def __init__(self, root: str | Path | None = None) -> None:
        self.root = Path(root).expanduser() if root is not None else default_cache_dir()

    def encode(
        self,
        encoder: Encoder,
        texts: Sequence[str],
        *,
        kind: Kind = "document",
        outputs: Literal["pooled"] = "pooled",
        batch_size: int | None = None,
        progress: bool | None = None,
    ) -> Floats:
        """Pooled vectors [N, d]: read where they are known, else encoded and kept."""
        checked, keys = self._keys(encoder, texts, kind)
        drawer = self._drawer(encoder, kind, outputs)
        out = np.empty((len(keys), encoder.dimension), np.float32)
        first: dict[bytes, int] = {}
        for row, key in enumerate(keys):
            first.setdefault(key, row)
        missing = dict(first)
        for shard in drawer.shards():
            pairs = [(row, missing.pop(key)) for row, key in enumerate(shard.keys) if key in missing]
            if pairs:
                source, target = np.array(pairs).T
                out[target] = shard.data[source]
        if missing:
            self._fill(out, encoder, checked, missing, drawer, kind, batch_size, progress)
        if len(first) < len(keys):
            out = out[[first[key] for key in keys]]
        return out

    def encode_tokens(
        self,
        encoder: Encoder,
        texts: Sequence[str],
        *,
        kind: Kind = "document",
        outputs: Literal["tokens", "layers"] = "tokens",
        batch_size: int | None = None,
        progress: bool | None = None,
    ) -> tuple[Halves, NDArray[np.int64]]:
        """Token states as one array mapped from disk, and where each text begins.

        Text i has ``flat[offsets[i] : offsets[i + 1]]``. One file holds the texts in the order given: the
        same texts again cost nothing, more texts cost the encoding of the new ones and a copy of the old.

        Returns:
            ``flat`` [Σ T, d] (or [Σ T, L + 1, d] for ``layers``), float16, read-only; ``offsets`` [N + 1].
        """
        checked, keys = self._keys(encoder, texts, kind)
        drawer = self._drawer(encoder, kind, outputs)
        shards = list(drawer.shards())
        for shard in shards:
            if shard.keys == keys:
                return shard.data, shard.offsets
        wide = encoder.hidden_size
        shape = (wide,) if outputs == "tokens" else (encoder.num_layers + 1, wide)
        known = {key: (shard, row) for shard in shards for row, key in enumerate(shard.keys)}
        step = 1024 if outputs == "tokens" else 128  # texts whose states are held in memory
        try:
            drawer.open()
            with (
                ShardWriter(drawer.path, shape, "float16") as writer,
                tqdm(
                    total=len(keys), desc="encoding tokens", unit="text", delay=1, disable=_hidden(progress)
                ) as bar,
            ):
                for start in range(0, len(keys), step):
                    part = range(start, min(start + step, len(keys)))
                    rows = _token_rows(encoder, checked, keys, part, known, kind, outputs, batch_size)
                    writer.append([keys[i] for i in part], [len(row) for row in rows], np.concatenate(rows))
                    bar.update(len(part))
        except OSError as error:
            raise _unwritable(self.root, error) from error
        made = Shard.open(writer.path)
        covered = set(keys)
        drawer.remove([shard for shard in shards if covered.issuperset(shard.keys)])
        return made.data, made.offsets

    def entries(self) -> list[CacheEntry]:
        """What is kept, by encoder and output."""
        found = []
        for path in sorted((self.root / "encodings").glob("*/about.json")):
            about = json.loads(path.read_text("utf-8"))
            found.append(CacheEntry(about["encoder"], about["output"], folder_size(path.parent), path.parent))
        return found

    def size(self) -> int:
        """Bytes on disk."""
        return sum(entry.bytes for entry in self.entries())

    def clear(self) -> int:
        """Remove every encoding; returns the bytes given back."""
        size = self.size()
        shutil.rmtree(self.root / "encodings", ignore_errors=True)
        return size

    def __repr__(self) -> str:
        return f"EncodingCache({str(self.root)!r})"

    def _keys(self, encoder: Encoder, texts: Sequence[str], kind: Kind) -> tuple[list[str], list[bytes]]:
        if not encoder.frozen:
            raise ConfigError(
                f"encoder {encoder.name!r} is being trained: its encodings change and are not kept"
            )
        checked = encoder.check(texts, kind)
        return checked, [hashlib.sha256(text.encode()).digest()[:KEY_BYTES] for text in checked]

    def _drawer(self, encoder: Encoder, kind: Kind, output: str) -> Drawer:
        about = {
            "format": 1,
            "fingerprint": encoder.fingerprint,
            "max_length": encoder.max_length,
            "precision": encoder.precision,
            "prompt": encoder.variant(kind),
            "output": output,
        }
        name = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]
        return Drawer(self.root / "encodings" / name, {"encoder": encoder.name, **about})

    def _fill(
        self,
        out: Floats,
        encoder: Encoder,
        texts: Sequence[str],
        missing: dict[bytes, int],
        drawer: Drawer,
        kind: Kind,
        batch_size: int | None,
        progress: bool | None,
    ) -> None:
        """Encode the missing rows of ``out``, and keep them every few thousand."""
        keys, rows = list(missing), list(missing.values())
        waiting: list[int] = []
        for batch, states in encoder.iter_states(
            [texts[row] for row in rows], kind=kind, batch_size=batch_size, progress=progress, positions=rows
        ):
            out[[rows[i] for i in batch]] = _numpy(states.pooled)
            waiting += batch.tolist()
            if len(waiting) >= _SHARD:
                self._keep(drawer, [keys[i] for i in waiting], out[[rows[i] for i in waiting]])
                waiting = []
        self._keep(drawer, [keys[i] for i in waiting], out[[rows[i] for i in waiting]])

    def _keep(self, drawer: Drawer, keys: list[bytes], rows: Floats) -> None:
        if not keys:
            return
        try:
            drawer.open()
            with ShardWriter(drawer.path, rows.shape[1:], "float32") as writer:
                writer.append(keys, [1] * len(keys), rows)
            drawer.merge()
        except OSError as error:
            warnings.warn(f"encodings are not kept: {_unwritable(self.root, error)}", stacklevel=4)


def default_cache_dir() -> Path:
    """``$PALMETTE_CACHE``, else palmette's folder among the user's caches."""
    if given := os.environ.get("PALMETTE_CACHE"):
        return Path(given).expanduser()
    if sys.platform == "win32":
        return (
            Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "palmette" / "cache"
        )
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "palmette"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "palmette"


def _token_rows(
    encoder: Encoder,
    texts: Sequence[str],
    keys: Sequence[bytes],
    part: range,
    known: dict[bytes, tuple[Shard, int]],
    kind: Kind,
    outputs: Literal["tokens", "layers"],
    batch_size: int | None,
) -> list[Halves]:
    """The states of texts ``part``, each [T, …]: copied where known, else encoded."""
    fresh: dict[bytes, int] = {}
    for i in part:
        if keys[i] not in known:
            fresh.setdefault(keys[i], i)
    made: dict[bytes, Halves] = {}
    new, positions = list(fresh), list(fresh.values())
    batches = encoder.iter_states(
        [texts[i] for i in positions],
        kind=kind,
        outputs=(outputs,),
        batch_size=batch_size,
        positions=positions,
    )
    for batch, states in batches:
        for i, half in zip(batch, _halves(states, outputs), strict=True):
            if not np.isfinite(half).all():
                where = f"{outputs} of text {positions[i]}"
                raise EncodingError(f"{where} exceed half precision: {texts[positions[i]]!r:.80}")
            made[new[i]] = half
    rows = []
    for i in part:
        if keys[i] in made:
            rows.append(made[keys[i]])
        else:
            shard, row = known[keys[i]]
            rows.append(shard.data[shard.offsets[row] : shard.offsets[row + 1]])
    return rows


def _halves(states: States, outputs: Literal["tokens", "layers"]) -> Iterator[Halves]:
    """Each text's states without padding: [T, d] or [T, L + 1, d]."""
    value = states.tokens if states.layers is None else states.layers.transpose(1, 2)  # [B, T, (L + 1,) d]
    mask = _numpy(states.mask)
    with np.errstate(over="ignore"):  # the caller looks for infinity
        halves = _numpy(value).astype(np.float16)
    for row, there in zip(halves, mask, strict=True):
        yield row[there]


def _numpy(tensor: Any) -> NDArray[Any]:
    array: NDArray[Any] = tensor.cpu().numpy()
    return array


def _hidden(progress: bool | None) -> bool | None:
    return True if progress is False else None


def _unwritable(root: Path, error: OSError) -> StorageFullError | ReadOnlyError:
    import errno

    fix = "set PALMETTE_CACHE to a folder with room that you may write"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFullError(f"no room left for encodings in {root}; {fix}")
    return ReadOnlyError(f"encodings cannot be written to {root} ({error}); {fix}")
