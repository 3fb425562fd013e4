"""One call from a name to an encoder, shared by all who ask for the same."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from palmette.config import check_keys, check_range
from palmette.encoder.base import Encoder
from palmette.encoder.device import check_device
from palmette.encoder.fake import FakeEncoder
from palmette.encoder.files import check_folder, fingerprint
from palmette.encoder.resolve import resolve
from palmette.errors import CheckpointError, ConfigError, InputError, ModelMismatchError

if TYPE_CHECKING:
    import torch

__all__ = ["encoder_of", "load_encoder"]

_KEYS = ("name", "revision", "fingerprint", "max_length", "dimension", "prompts")
_shared: WeakValueDictionary[tuple[object, ...], Encoder] = WeakValueDictionary()
_loading = threading.Lock()


def load_encoder(
    name_or_encoder: str | Path | Mapping[str, Any] | Encoder,
    *,
    revision: str | None = None,
    token: str | None = None,
    cache_dir: str | Path | None = None,
    local_files_only: bool = False,
    device: str | torch.device | None = None,
    dtype: str = "auto",
    batch_size: int = 32,
    max_length: int | None = None,
    threads: int | None = None,
) -> Encoder:
    """The encoder of that name; loading the same twice gives the same object.

    Args:
        name_or_encoder: A directory, a Hub name, ``packaged:all-MiniLM-L6-v2``, ``fake:32``, what
            :meth:`Encoder.to_config` wrote (the fingerprint is then checked), or an encoder: itself.
        revision: Branch, tag or commit on the Hub.
        token: For private repositories.
        cache_dir: Instead of the Hub's usual cache.
        local_files_only: Never ask the network.
        device: ``cuda``, ``cuda:1``, ``mps``, ``cpu``; by default the best that is there.
        dtype: ``float32``, ``bfloat16``, ``float16``, or ``auto``: see :func:`auto_precision`.
        batch_size: Texts per forward pass.
        max_length: Tokens per text; by default the model's own limit.
        threads: CPU threads of torch, for the whole process. Workers times threads should not exceed the
            cores: a query is 10 to 50 times slower when it does.
    """
    if threads is not None:
        import torch

        check_range("load_encoder", "threads", threads, 1)
        torch.set_num_threads(threads)
    if device is not None:  # an encoder that has its device, or needs none, takes no unusable one either
        check_device(device)
    if isinstance(name_or_encoder, Encoder):
        return name_or_encoder
    expected = None
    name: object = name_or_encoder
    if isinstance(name_or_encoder, Mapping):
        check_keys("an encoder's config", name_or_encoder, _KEYS)
        name, expected = name_or_encoder.get("name"), name_or_encoder.get("fingerprint")
        revision = revision or name_or_encoder.get("revision")
        max_length = max_length or name_or_encoder.get("max_length")
    if not isinstance(name, str | Path):
        given = f"{type(name).__name__}: {name!r:.80}"
        raise InputError(
            f"an encoder is given by its name, directory or config, or is an Encoder; got {given}"
        )
    with _loading:
        if str(name) == "fake" or str(name).startswith("fake:"):
            encoder: Encoder = _share(
                FakeEncoder.from_name(str(name), **({"max_length": max_length} if max_length else {}))
            )
        else:
            source = resolve(
                str(name),
                revision=revision,
                token=token,
                cache_dir=cache_dir,
                local_files_only=local_files_only,
                verified=expected is not None,
            )
            encoder = _load(
                source.folder, source.name, source.revision, device, dtype, batch_size, max_length
            )
    if expected is not None and encoder.fingerprint != expected:
        found = encoder.fingerprint
        raise CheckpointError(
            f"encoder {name!r} is not the one this was made with (fingerprint {found[:16]}…, expected "
            f"{expected[:16]}…). Give the original revision or folder, or train again"
        )
    return encoder


def encoder_of(
    facts: Mapping[str, Any], given: str | Encoder | None, where: str | Path, **options: Any
) -> Encoder:
    """The encoder that a checkpoint was trained with, and no other.

    Args:
        facts: What :meth:`Encoder.to_config` wrote into the checkpoint.
        given: The encoder, or its name or folder, where it is not to be loaded as the checkpoint says.
        where: The checkpoint, for messages.
        options: More of :func:`load_encoder`.
    """
    if given is None:
        return load_encoder(facts, **options)
    encoder = load_encoder(given, max_length=facts.get("max_length"), **options)
    if encoder.fingerprint != facts["fingerprint"]:
        raise ModelMismatchError(
            f"{where} was trained with encoder {facts['name']!r} (fingerprint {facts['fingerprint'][:16]}…), but "
            f"{encoder.name!r} has {encoder.fingerprint[:16]}…: give that encoder, or leave encoder= out"
        )
    return encoder


def _load(
    folder: Path,
    name: str,
    revision: str | None,
    device: str | torch.device | None,
    dtype: str,
    batch_size: int,
    max_length: int | None,
) -> Encoder:
    from palmette.encoder.device import auto_precision
    from palmette.encoder.sentence import PRECISIONS, SentenceEncoder

    where = check_device(device)
    if dtype not in ("auto", *PRECISIONS):
        raise ConfigError(f"dtype must be auto, {', '.join(PRECISIONS)}; got {dtype!r}")
    precision = auto_precision(where) if dtype == "auto" else dtype
    check_folder(folder, name)

    def key(limit: int) -> tuple[object, ...]:
        return fingerprint(folder, limit), name, revision, str(where), precision, batch_size

    if (known := _shared.get(key(max_length or 0))) is not None:
        return known
    encoder = SentenceEncoder(
        folder,
        name=name,
        revision=revision,
        device=where,
        precision=precision,
        batch_size=batch_size,
        max_length=max_length,
    )
    _shared[key(max_length or 0)] = _shared[key(encoder.max_length)] = encoder
    return encoder


def _share(encoder: Encoder) -> Encoder:
    return _shared.setdefault((encoder.name, encoder.fingerprint), encoder)
