"""Loads encoders by name, folder, config or object, and shares equal ones."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakValueDictionary

from palmette.config import check_choice, check_keys, check_range
from palmette.encoder.base import Encoder
from palmette.encoder.given import PREFIX, GivenEncoder, is_embedder
from palmette.encoder.local.files import check_encoder_folder, fingerprint
from palmette.encoder.local.find import GRAPHS, ONNX, EncoderSource, find_encoder, find_onnx
from palmette.encoder.onnx.weights import Unknown
from palmette.encoder.options import check_plain, chosen_prompts
from palmette.encoder.sentences.separate import separate, without_option
from palmette.encoder.stand_in import StandInEncoder
from palmette.errors import CheckpointError, ConfigError, InputError, MissingExtraError, ModelMismatchError, shown
from palmette.hub.checkpointed import loading
from palmette.machine.devices import auto_precision, can_train, check_device, may_have_gpu, needs_train
from palmette.machine.files import reading

if TYPE_CHECKING:
    import torch

REMOTE = "openai:"
"""Beginning of the names of models behind a server."""
PRECISIONS = ("float32", "bfloat16", "float16")
"""Precisions of a forward pass that may be asked for."""
_KEYS = ("name", "revision", "fingerprint", "max_length", "dimension", "prompts", "truncate")

_shared: WeakValueDictionary[tuple[object, ...], Encoder] = WeakValueDictionary()
_stand_ins: WeakValueDictionary[tuple[object, ...], StandInEncoder] = WeakValueDictionary()
_given: WeakValueDictionary[tuple[object, ...], GivenEncoder] = WeakValueDictionary()
_loading = threading.Lock()


@dataclass(frozen=True)
class _Options:
    """Options of :func:`load_encoder` for the pass (first four) and for the vectors (the others)."""

    device: torch.device | str | None
    dtype: str
    batch_size: int
    threads: int | None
    max_length: int | None
    prompts: Mapping[str, str] | None
    truncate: int | None

    def of_vectors(self) -> dict[str, Any]:
        """Options that change the vectors."""
        return {"max_length": self.max_length, "prompts": self.prompts, "truncate": self.truncate}


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
    sentences: str | None = None,
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
        sentences: ``"separate"`` encodes each sentence of a document by itself, for encoders that give one vector a
            text (:class:`palmette.encoder.sentences.separate.SeparateSentences`): dearer, and sentences rank too.
    """
    if isinstance(name_or_encoder, Mapping):
        sentences = name_or_encoder.get("sentences") if sentences is None else sentences
        name_or_encoder = without_option(name_or_encoder)
    hub = {"revision": revision, "token": token, "cache_dir": cache_dir, "local_files_only": local_files_only}
    options = _Options(device, dtype, batch_size, threads, max_length, prompts, truncate)
    return separate(_load(name_or_encoder, hub, options), sentences)


def _load(name_or_encoder: str | Path | Mapping[str, Any] | Encoder, hub: dict[str, Any], options: _Options) -> Encoder:
    """Load an encoder, before :func:`separate` wraps it."""
    # 1. The device is checked even where an encoder will not use it; there is a CPU without torch.
    if options.threads is not None:
        check_range("load_encoder", "threads", options.threads, 1)
    if options.device is not None and str(options.device) != "cpu":
        needs_train(f"device={str(options.device)!r}")
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

        return load_remote(name, record if expected else None, **options.of_vectors())
    with _loading:
        encoder = _load_named(name, hub, expected is not None, options)
    if expected is not None and encoder.fingerprint != expected:
        raise CheckpointError(
            f"encoder {name!r} is not the one this was made with (fingerprint {encoder.fingerprint[:16]}…, expected "
            f"{expected[:16]}…). Give the original revision or folder, or train again"
        )
    return encoder


def _load_given(embedder: Any, prompts: Mapping[str, str] | None, truncate: int | None) -> GivenEncoder:
    """Return the encoder of an embedder of a framework, or of a function."""
    with _loading:
        key = id(embedder), repr(prompts), truncate
        made = _given.get(key)
        if made is None or made.embedder is not embedder:
            made = _given[key] = GivenEncoder(embedder, prompts=prompts, truncate=truncate)
        return made


def _check_config(config: Any) -> Mapping[str, Any]:
    """Check a user's or a record's config, which has a fingerprint; anything else may be a name."""
    if not isinstance(config, Mapping):
        return {"name": config}
    check_keys("an encoder's config", config, _KEYS)
    if "fingerprint" in config and not (isinstance(config["fingerprint"], str) and config["fingerprint"]):
        raise CheckpointError(f"the fingerprint of an encoder is a text, got {shown(config['fingerprint'])}")
    return config


def _load_named(name: str, hub: Mapping[str, Any], verified: bool, options: _Options) -> Encoder:
    """Load an encoder by its name or folder; ``verified``: its fingerprint is compared afterwards."""
    if name == "fake" or name.startswith("fake:"):
        from palmette.encoder.fake import FakeEncoder

        fake = FakeEncoder.from_name(name, **({"max_length": options.max_length} if options.max_length else {}))
        check_plain(fake, options.prompts, options.truncate)
        return _shared.setdefault((fake.name, fake.fingerprint), fake)
    if name.startswith(ONNX):
        if options.device not in (None, "cpu"):
            raise ConfigError(f"{name!r} computes on the CPU, got device={str(options.device)!r}: leave it out")
        source, graph = find_onnx(name, **hub)
        with reading(source.folder, CheckpointError), loading(source.folder):
            return _load_graph(source, graph, options)
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
    encoder = separate(load_encoder(given, max_length=facts.get("max_length"), **options), facts.get("sentences"))
    if encoder.stands_for == expected:
        return _stand_ins.setdefault((id(encoder), repr(facts)), StandInEncoder(encoder, facts))
    if encoder.fingerprint != expected:
        raise ModelMismatchError(
            f"{where} was trained with encoder {facts['name']!r} (fingerprint {expected[:16]}…), but "
            f"{encoder.name!r} has {encoder.fingerprint[:16]}…: give that encoder, or leave encoder= out"
        )
    return encoder


def _load_graph(source: EncoderSource, graph: str | None, options: _Options) -> Encoder:
    """Load an ONNX graph, which ONNX Runtime computes."""
    from palmette.encoder.onnx.encoder import OnnxEncoder
    from palmette.encoder.onnx.folder import OnnxFolder

    files = OnnxFolder.read(source.folder, graph, GRAPHS, source.name)
    given = _of_runtime(source, options, files.limit(options.max_length))
    facts = files.content, options.truncate, *given.values()

    def make() -> Encoder:
        return OnnxEncoder(files, prompts=options.prompts, truncate=options.truncate, **given)

    return _share(lambda _: facts, make, options)


def _load_folder(source: EncoderSource, options: _Options) -> Encoder:
    """Load a sentence-transformers folder: by ONNX Runtime on a CPU, else by torch; both have one fingerprint.

    A device or a precision that is asked for is torch's, where it is installed.
    """
    folder, name, _ = source
    device, dtype = options.device, options.dtype
    asked = dtype not in ("auto", "float32") or device not in (None, "cpu")
    if asked or (can_train() and (dtype != "auto" or (device is None and may_have_gpu()))):
        needs_train(f"device={str(device)!r}, dtype={dtype!r}")
        return _load_torch(source, options)
    check_encoder_folder(folder, name)
    try:
        with loading(folder):
            return _load_light(source, options)
    except Unknown as error:
        if can_train():
            return _load_torch(source, options)
        raise MissingExtraError("torch", "train", f"encoder {name!r} ({error})", EXPORT.format(name)) from None


EXPORT = ", or where torch is installed write `palmette export-onnx {} FOLDER`, and give 'onnx:FOLDER' here"
"""Second way out for an encoder that needs torch."""


def _load_light(source: EncoderSource, options: _Options) -> Encoder:
    """Load a folder's own weights into ONNX Runtime, without torch."""
    from palmette.encoder.onnx.encoder import LightEncoder
    from palmette.encoder.onnx.folder import OnnxFolder

    files = OnnxFolder.over_weights(source.folder, source.name)
    given = _of_runtime(source, options, files.limit(options.max_length))
    facts = "light", files.fingerprint(given["max_length"]), options.truncate, *given.values()
    by_torch = partial(_load_torch, source, options)  # for many texts at once

    def make() -> Encoder:
        return LightEncoder(files, by_torch, prompts=options.prompts, truncate=options.truncate, **given)

    return _share(lambda _: facts, make, options)


def _of_runtime(source: EncoderSource, options: _Options, max_length: int) -> dict[str, Any]:
    """Options of an encoder that ONNX Runtime computes."""
    run = {"batch_size": options.batch_size, "max_length": max_length, "threads": options.threads}
    return {"name": source.name, "revision": source.revision} | run


def _load_torch(source: EncoderSource, options: _Options) -> Encoder:
    """Load a sentence-transformers folder into torch."""
    from palmette.encoder.local.sentence_transformer import SentenceEncoder

    folder, name, revision = source
    where = check_device(options.device)
    if options.threads is not None:
        import torch

        torch.set_num_threads(options.threads)
    precision = auto_precision(where) if options.dtype == "auto" else options.dtype
    given: dict[str, Any] = {"name": name, "revision": revision, "device": where, "precision": precision}
    given["batch_size"] = options.batch_size
    facts = options.truncate, *given.values()

    def make() -> Encoder:
        with loading(folder):
            return SentenceEncoder(folder, **options.of_vectors(), **given)

    return _share(lambda limit: (fingerprint(folder, limit or 0), *facts), make, options)


def _share(
    facts: Callable[[int | None], tuple[object, ...]], make: Callable[[], Encoder], options: _Options
) -> Encoder:
    """Return the encoder of these ``facts`` (of a token limit) if it is loaded already, or make it.

    It is found by the limit and the prompts that were asked for, and by those that it has.
    """

    def key(limit: int | None, prompts: Mapping[str, str] | None) -> tuple[object, ...]:
        return *facts(limit), None if prompts is None else repr(sorted(prompts.items()))

    asked = options.max_length, options.prompts
    encoder = _shared.get(key(*asked))
    if encoder is None:
        made = make()
        encoder = _shared[key(*asked)] = _shared.setdefault(key(made.max_length, made.prompts), made)
    return encoder
