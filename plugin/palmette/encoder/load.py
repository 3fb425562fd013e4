"""Loads encoders by name, folder, config or object, and shares equal ones."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakValueDictionary

from palmette.config import check_choice, check_keys
from palmette.encoder.base import Encoder, WrappedEncoder, inner
from palmette.encoder.local.files import check_encoder_folder, fingerprint
from palmette.encoder.local.find import GRAPHS, ONNX, EncoderSource, find_encoder, find_onnx
from palmette.encoder.onnx.folder import OnnxFolder
from palmette.encoder.onnx.graph import UnsupportedTransformer
from palmette.encoder.options import EncoderOptions, chosen_prompts
from palmette.encoder.pooled import PREFIX, GivenEncoder, is_embedder
from palmette.errors import CheckpointError, ConfigError, InputError, MissingExtraError, ModelMismatchError, shown
from palmette.hub.checkpointed import loading
from palmette.machine.devices import auto_precision, check_device, has_torch, may_have_gpu, require_torch
from palmette.machine.files import reading

if TYPE_CHECKING:
    import torch

REMOTE = "openai:"
"""Beginning of the names of models behind a server."""
PRECISIONS = ("float32", "bfloat16", "float16")
"""Precisions of a forward pass that may be asked for."""
_KEYS = ("name", "revision", "fingerprint", "max_length", "dimension", "prompts", "truncate")

_shared: WeakValueDictionary[tuple[object, ...], Encoder] = WeakValueDictionary()
_loading = threading.Lock()


class StandInEncoder(WrappedEncoder):
    """An export of the encoder that a checkpoint names, such as an ONNX one: what is saved names the original.

    Its fingerprint stays the export's own, so that a cache keeps the encodings of both apart.
    """

    forward = inner("forward")

    def __init__(self, encoder: Encoder, original: Mapping[str, Any]) -> None:
        super().__init__(encoder)
        self.name, self._original = str(original["name"]), dict(original)
        self.reads_questions_only = encoder.precision == "int8"  # documents in it would lie a little beside the others

    def to_config(self) -> dict[str, Any]:
        """Return the config of the original."""
        return dict(self._original)


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
    prompts: Mapping[str, str] | None = None,
    truncate: int | None = None,
    threads: int | None = None,
) -> Encoder:
    """Load an encoder; loading the same twice gives the same object.

    Args:
        name_or_encoder: A directory, a Hub name, ``packaged:all-MiniLM-L6-v2``, ``fake:32``, ``onnx:`` and a directory
            or Hub name with an ONNX graph (:mod:`palmette.encoder.onnx`, which needs no torch), ``openai:MODEL`` or
            ``openai:MODEL@https://host/v1`` (:class:`palmette.encoder.remote.RemoteEncoder`), the config that
            :meth:`Encoder.to_config` gave (its fingerprint is then checked), or an encoder: itself. Or LangChain's
            ``Embeddings``, LlamaIndex's ``BaseEmbedding``, or a function from texts to vectors. A dict such as
            ``{"name": "…", "truncate": 256}`` gives a name with options where only an encoder can be given.
        revision: Branch, tag or commit on the Hub.
        token: For private repositories; by default the login of ``hf auth login``.
        cache_dir: Replaces the Hub's usual cache.
        local_files_only: Never use the network.
        device: ``cuda``, ``cuda:1``, ``mps``, ``cpu``; by default the best that is there. On a CPU, ONNX Runtime
            computes encoders of BERT's family, and torch (the extra ``train``) all others.
        dtype: Precision of torch: ``float32``, ``bfloat16``, ``float16``, or ``auto``: see :func:`auto_precision`. Any
            but ``auto`` takes torch where it is installed.
        batch_size: Texts per forward pass.
        max_length: Tokens per text; by default the model's own limit.
        prompts: Text put before a query and before a document, ``{"query": "query: ", "document": "passage: "}``; by
            default the model's own.
        truncate: Columns of the vectors that are kept, of a model that was trained for it (Matryoshka).
        threads: CPU threads of a pass; of torch for the whole process. Workers times threads should
            not exceed the cores: a query is 10 to 50 times slower when it does.
    """
    hub = {"revision": revision, "token": token, "cache_dir": cache_dir, "local_files_only": local_files_only}
    options = EncoderOptions(device, dtype, batch_size, threads, max_length, prompts, truncate)
    # 1. The device is checked even where an encoder will not use it; there is a CPU without torch.
    if options.device is not None and str(options.device) != "cpu":
        require_torch(f"device={str(options.device)!r}")
        options = replace(options, device=check_device(options.device))
    else:
        options = replace(options, device=None if options.device is None else "cpu")
    # 2. Objects are encoders already, or are wrapped.
    if isinstance(name_or_encoder, Encoder):
        if options.prompts is not None or options.truncate is not None:
            raise ConfigError("prompts= and truncate= go with a name or an embedder: an Encoder has them already")
        return name_or_encoder
    if is_embedder(name_or_encoder):
        return _load_given(name_or_encoder, options.prompts, options.truncate)
    # 3. A record gives the options that the caller does not.
    record = _check_config(name_or_encoder)
    name, expected = cast(object, record.get("name")), record.get("fingerprint")
    hub["revision"] = hub["revision"] or record.get("revision")
    options = replace(
        options,
        max_length=options.max_length or record.get("max_length"),
        prompts=(record.get("prompts") or None) if options.prompts is None else options.prompts,
        truncate=record.get("truncate") if options.truncate is None else options.truncate,
    )
    chosen_prompts(options.prompts, {})
    if not isinstance(name, str | Path):
        raise InputError(
            "an encoder is given by its name, directory or config, or is an Encoder; got "
            f"{type(name).__name__}: {shown(name)}"
        )
    check_choice("dtype", options.dtype, ("auto", *PRECISIONS))
    name = str(name)
    if name.startswith(PREFIX):
        raise ModelMismatchError(
            f"this was made with {name.removeprefix(PREFIX)!r}, the embeddings of a framework or a function, which is "
            "not stored: give the same object as encoder="
        )
    # 4. The name says who computes: a server, or this machine. A record's fingerprint must come out again.
    if name.startswith(REMOTE):
        from palmette.encoder.remote import load_remote

        return load_remote(name, record if expected else None, options)
    with _loading:
        encoder = _load_named(name, hub, expected is not None, options)
    if expected is not None and encoder.fingerprint != expected:
        raise CheckpointError(
            f"encoder {name!r} is not the one this was made with (fingerprint {encoder.fingerprint[:16]}…, expected "
            f"{expected[:16]}…). Give the original revision or folder, or train again"
        )
    return encoder


def _load_given(embedder: Any, prompts: Mapping[str, str] | None, truncate: int | None) -> Encoder:
    """Return the encoder of an embedder of a framework, or of a function."""
    key = "given", id(embedder), repr(prompts), truncate  # the encoder keeps its embedder, whose id is its own so long
    with _loading:
        return _shared.setdefault(key, _shared.get(key) or GivenEncoder(embedder, prompts=prompts, truncate=truncate))


def _check_config(config: Any) -> Mapping[str, Any]:
    """Check a user's or a record's config, which has a fingerprint; anything else may be a name."""
    if not isinstance(config, Mapping):
        return {"name": config}
    check_keys("an encoder's config", config, _KEYS)
    if "fingerprint" in config and not (isinstance(config["fingerprint"], str) and config["fingerprint"]):
        raise CheckpointError(f"the fingerprint of an encoder is a text, got {shown(config['fingerprint'])}")
    return config


def _load_named(name: str, hub: Mapping[str, Any], verified: bool, options: EncoderOptions) -> Encoder:
    """Load an encoder by its name or folder; ``verified``: its fingerprint is compared afterwards."""
    if name == "fake" or name.startswith("fake:"):
        from palmette.encoder.fake import FakeEncoder

        fake = FakeEncoder.from_name(name, **({"max_length": options.max_length} if options.max_length else {}))
        if options.truncate is not None or any(chosen_prompts(options.prompts, {}).values()):
            raise ConfigError(
                f"encoder {fake.name!r} takes no prompts and no truncate: they go with a sentence-transformers model, "
                "its ONNX export, embeddings of a framework, a function, or a model behind a server"
            )
        return _shared.setdefault((fake.name, fake.fingerprint), fake)
    if name.startswith(ONNX):
        if options.device not in (None, "cpu"):
            raise ConfigError(f"{name!r} computes on the CPU, got device={str(options.device)!r}: leave it out")
        source, graph = find_onnx(name, **hub)
        with reading(source.folder, CheckpointError), loading(source.folder):
            return _load_onnx(source, options, OnnxFolder.read(source.folder, graph, GRAPHS, source.name))
    source = find_encoder(name, verified=verified, **hub)
    with reading(source.folder, CheckpointError):
        return _load_folder(source, options)


def encoder_of(facts: Mapping[str, Any], given: str | Encoder | None, where: str | Path, **options: Any) -> Encoder:
    """Load the encoder with whose config (``facts``) the checkpoint at ``where`` was trained, and no other.

    ``given`` replaces the recorded name: an encoder, a name or a folder. ``options`` are those of :func:`load_encoder`.
    """
    expected = facts["fingerprint"]  # needed: without one a stranger's record would count as a name that the user gave
    if given is None:
        return load_encoder(facts, **options)
    if not isinstance(given, Encoder | Mapping):
        options = {"prompts": facts.get("prompts") or None, "truncate": facts.get("truncate"), **options}
    encoder = load_encoder(given, max_length=facts.get("max_length"), **options)
    if encoder.stands_for == expected:
        return _shared.setdefault(("stand-in", id(encoder), repr(facts)), StandInEncoder(encoder, facts))
    if encoder.fingerprint != expected:
        raise ModelMismatchError(
            f"{where} was trained with encoder {facts['name']!r} (fingerprint {expected[:16]}…), but "
            f"{encoder.name!r} has {encoder.fingerprint[:16]}…: give that encoder, or leave encoder= out"
        )
    return encoder


def _load_folder(source: EncoderSource, options: EncoderOptions) -> Encoder:
    """Load a sentence-transformers folder: by ONNX Runtime on a CPU, else by torch; both have one fingerprint.

    Torch is taken, where it is installed, for a named ``dtype``, for a GPU that is named or may be there, and
    for a transformer that :func:`write_graph` does not know.
    """
    folder, name, _ = source
    device, dtype = options.device, options.dtype
    needs_torch = dtype not in ("auto", "float32") or device not in (None, "cpu")
    if needs_torch or (has_torch() and (dtype != "auto" or (device is None and may_have_gpu()))):
        require_torch(f"device={str(device)!r}, dtype={dtype!r}")
        return _load_torch(source, options)
    check_encoder_folder(folder, name)
    try:
        with loading(folder):
            files = OnnxFolder.over_weights(folder, name)
            return _load_onnx(source, options, files, by_torch=partial(_load_torch, source, options))
    except UnsupportedTransformer as error:
        if has_torch():
            return _load_torch(source, options)
        fix = f", or where torch is installed write `palmette export-onnx {name} FOLDER`, and give 'onnx:FOLDER' here"
        raise MissingExtraError("torch", "train", f"encoder {name!r} ({error})", fix) from None


def _load_onnx(
    source: EncoderSource, options: EncoderOptions, files: OnnxFolder, by_torch: Callable[[], Encoder] | None = None
) -> Encoder:
    """Load a graph into ONNX Runtime; one over a model's own weights has a way to load the model ``by_torch``, too."""
    from palmette.encoder.onnx.encoder import LightEncoder, OnnxEncoder

    limit, (_, name, revision) = files.limit(options.max_length), source
    kind, content = by_torch is None, files.fingerprint(limit)
    facts = kind, content, name, revision, limit, options.batch_size, options.threads, options.truncate

    def make() -> Encoder:
        if by_torch is None:
            return OnnxEncoder(files, options, name=name, revision=revision)
        return LightEncoder(files, options, by_torch, name=name, revision=revision)

    return _share(lambda _: facts, make, options)


def _load_torch(source: EncoderSource, options: EncoderOptions) -> Encoder:
    """Load a sentence-transformers folder into torch."""
    from palmette.encoder.local.sentence_transformer import SentenceEncoder

    folder, name, revision = source
    where = check_device(options.device)
    if options.threads is not None:
        import torch

        torch.set_num_threads(options.threads)
    precision = auto_precision(where) if options.dtype == "auto" else options.dtype
    facts = name, revision, where, precision, options.batch_size, options.truncate

    def make() -> Encoder:
        with loading(folder):
            return SentenceEncoder(folder, options, name=name, revision=revision, device=where, precision=precision)

    return _share(lambda limit: (fingerprint(folder, limit or 0), *facts), make, options)


def _share(
    facts: Callable[[int | None], tuple[object, ...]], make: Callable[[], Encoder], options: EncoderOptions
) -> Encoder:
    """Return the encoder of these ``facts`` (of a token limit) if it is loaded already, or make it.

    It is found by the limit and the prompts that were asked for, and by those that it has.
    """

    def key(limit: int | None, prompts: Mapping[str, str] | None) -> tuple[object, ...]:
        return *facts(limit), None if prompts is None else repr(sorted(prompts.items()))

    requested = key(options.max_length, options.prompts)
    encoder = _shared.get(requested)
    if encoder is None:
        new = make()
        encoder = _shared[requested] = _shared.setdefault(key(new.max_length, new.prompts), new)
    return encoder
