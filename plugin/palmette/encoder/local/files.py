"""A sentence-transformers folder on disk: is it safe and whole, and what is its fingerprint?"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from palmette.config import parse_json
from palmette.errors import CheckpointError, shown

WEIGHTS_FILE = "model.safetensors"
"""File of a module's weights."""
SHARDS = "model.safetensors.index.json"
"""List of the files over which large weights are spread."""
# Written by the program that saved the files, without effect on the vectors.
_NOISE = set(
    "__version__ _attn_implementation_autoset _name_or_path architectures backend dtype gradient_checkpointing "
    "is_local local_files_only max_seq_length model_max_length name_or_path processor_class similarity_fn_name "
    "special_tokens_map_file tokenizer_file torch_dtype transformers_version use_cache".split()
)
_WEIGHTLESS = ("Pooling", "Normalize", "Dropout")
_ROUTERS = ("Router", "Asym")
_NETWORKS = ("Transformer", "CLIPModel", "MLMTransformer")
"""Modules whose weights the transformers library reads, from shards too."""
FOREIGN_CODE = "needs its own code ({}); palmette runs no code from a checkpoint"
"""Complaint about an encoder that brings a class of its own."""
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.h5", "*.msgpack")
_SETTINGS = (
    "config.json",
    "sentence_*_config.json",
    "*processor_config.json",
    "*tokenizer_config.json",
    "wordembedding_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
"""JSON that the libraries read of a module, beside weights and vocabulary."""
_TOKENIZERS = ("tokenizer.json", "tokenizer.*.json")
_VOCABULARY = ("vocab.txt", "vocab.json", "merges.txt", "*.model")
"""What a tokenizer is made of where there is no tokenizer.json."""
_HEADER = 1 << 27
"""Bytes that the header of a safetensors file has at most."""


def sha256_of(path: Path, *, tokenizer: bool = False) -> str:
    """SHA-256 of a file, computed once per process as long as size and time stay the same.

    How a ``tokenizer`` pads and cuts is set at run time, and left out.
    """
    real = path.resolve()
    stat = real.stat()
    return _sha256(real, stat.st_size, stat.st_mtime_ns, tokenizer)


@lru_cache(maxsize=256)
def _sha256(path: Path, size: int, mtime: int, tokenizer: bool) -> str:
    if tokenizer:
        text = json.dumps({**read_settings(path), "padding": None, "truncation": None}, sort_keys=True)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Module(NamedTuple):
    """A module of the folder: the name of its class in the library, and where its files lie."""

    kind: str
    folder: Path


class Tensor(NamedTuple):
    """A tensor of a safetensors file: its type, shape, first byte in the file, and bytes."""

    kind: str
    shape: tuple[int, ...]
    start: int
    size: int


class Size(NamedTuple):
    """How much a folder's weights hold."""

    tensors: int
    numbers: int


def check_encoder_folder(folder: Path, name: str) -> Size:
    """Raise CheckpointError unless every module has safetensors weights and only code of the library.

    Returns the size of the weights, which no network made of them may exceed by much.
    """
    if not (folder / "config.json").is_file() and not (folder / "modules.json").is_file():
        raise CheckpointError(f"encoder {name!r}: {folder} holds no model (neither config.json nor modules.json)")
    tensors = numbers = 0
    for kind, module in modules_of(folder, name):
        if "auto_map" in read_settings(module / "config.json"):
            raise CheckpointError(f"encoder {name!r} {FOREIGN_CODE.format('auto_map')}")
        if (module / "adapter_config.json").exists():
            raise CheckpointError(
                f"encoder {name!r}: {module} holds an adapter, which palmette does not read: merge it into the model "
                "(merge_and_unload of peft) and save that"
            )
        if kind in _WEIGHTLESS:
            continue
        sizes = [read_size(path) for path in _weights(kind, module, name)]
        tensors, numbers = tensors + sum(size.tensors for size in sizes), numbers + sum(size.numbers for size in sizes)
        if kind not in _NETWORKS:
            check_shape(kind, module, name, sum(size.numbers for size in sizes))
    return Size(tensors, numbers)


def _weights(kind: str, module: Path, name: str) -> list[Path]:
    """List the files that a module's weights are read from."""
    if (module / WEIGHTS_FILE).is_file():
        return [module / WEIGHTS_FILE]
    shards = read_settings(module / SHARDS).get("weight_map") if kind in _NETWORKS else None
    if isinstance(shards, dict):
        files = sorted({str(file) for file in shards.values()})
        if files and all(file == Path(file).name and (module / file).is_file() for file in files):
            return [module / file for file in files]
        raise CheckpointError(f"encoder {name!r}: {module / SHARDS} names files that are not there: download it again")
    pickled = [path.name for pattern in _PICKLES for path in sorted(module.glob(pattern))]
    content = f"only pickled weights ({pickled[0]})" if pickled else "no weights"
    raise CheckpointError(
        f"encoder {name!r}: {kind} has {content} in {module}; palmette loads {WEIGHTS_FILE} only. "
        "Choose a revision that has it, or convert: SentenceTransformer(...).save_pretrained(folder)"
    )


def read_size(path: Path) -> Size:
    """Count the tensors and numbers of a safetensors file."""
    tensors = read_tensors(path).values()
    return Size(len(tensors), sum(math.prod(tensor.shape) for tensor in tensors))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the header of a safetensors file: its tensors by name."""
    tensors: dict[str, Tensor] = {}
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > min(_HEADER, path.stat().st_size):
                raise ValueError(f"its header has {length:,} bytes")
            header = parse_json(file.read(length))
        header.pop("__metadata__", None)
        for name, facts in header.items():
            start, stop = facts["data_offsets"]
            tensors[name] = Tensor(facts["dtype"], tuple(facts["shape"]), 8 + length + start, stop - start)
            if any(type(size) is not int or size < 0 for size in tensors[name].shape):
                raise ValueError("its shapes are no sizes")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} is no safetensors file ({error}): download the encoder again") from error
    return tensors


def check_shape(kind: str, module: Path, name: str, numbers: int) -> None:
    """Raise where a small module declares more numbers than its weights hold: they would be made before being compared.

    Networks are measured while they are made.
    """
    config = read_settings(module / "config.json")
    sizes = [value for value in config.values() if type(value) is int and value > 1]
    declared, room = (math.prod(sizes), 1 << 10) if kind == "Dense" else (max(sizes, default=0), 1 << 20)
    if declared > 2 * numbers + room:
        raise CheckpointError(
            f"encoder {name!r}: {kind} in {module} declares {declared:,} numbers, and its weights hold {numbers:,}: "
            "download it again"
        )


def fingerprint(folder: Path, max_length: int) -> str:
    """SHA-256 over what determines the vectors: every file that is read of every module, prompts, limit."""
    content: dict[str, Any] = {"max_length": max_length}
    for number, (kind, module) in enumerate(modules_of(folder, str(folder))):
        content[f"{number} {kind}"] = dict(module_content(module))
    model = read_settings(folder / "config_sentence_transformers.json")
    prompts = model.get("prompts") or {}
    content["prompts"] = {key: text for key, text in prompts.items() if text} if isinstance(prompts, dict) else prompts
    content["model"] = {key: model.get(key) for key in ("default_prompt_name", "truncate_dim")}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()


def modules_of(folder: Path, name: str) -> list[Module]:
    """List the modules; one outside the folder, of foreign code or that chooses between others raises."""
    path = folder / "modules.json"
    # A plain transformer gets a pooling that has no file.
    rows = _json(path) if path.is_file() else [{"type": "sentence_transformers.models.Transformer"}]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise CheckpointError(f"encoder {name!r}: {path} is no list of modules")
    modules, root = list[Module](), folder.resolve()
    for row in rows:
        kind, place = str(row.get("type")), str(row.get("path", ""))
        if not kind.startswith("sentence_transformers."):
            raise CheckpointError(f"encoder {name!r} {FOREIGN_CODE.format(shown(kind))}")
        kind, module = kind.rpartition(".")[2], (folder / place).resolve()
        if kind in _ROUTERS:
            raise CheckpointError(f"encoder {name!r} has several networks behind a {kind}: palmette reads one, name it")
        if not module.is_relative_to(root):
            raise CheckpointError(f"encoder {name!r}: modules.json points outside the folder: {place!r}")
        modules.append(Module(kind, module if module != root else folder))
    return modules


def module_content(module: Path) -> Iterator[tuple[str, Any]]:
    """Yield what determines the results of a module: its files by name, with their content or sums."""

    def files(patterns: Sequence[str]) -> list[Path]:
        return sorted({path for pattern in patterns for path in module.glob(pattern)})

    for path in files(("*.safetensors", "*.jinja", SHARDS)):
        yield path.name, sha256_of(path)
    for path in files(_SETTINGS):
        config = read_settings(path)
        unused = {key for key, value in config.items() if key.startswith("pooling_mode_") and value is False}
        if settings := {key: value for key, value in config.items() if key not in _NOISE | unused}:
            yield path.name, settings
    for path in files(_TOKENIZERS):
        yield path.name, sha256_of(path, tokenizer=True)
    if not (module / "tokenizer.json").is_file():
        for path in files(_VOCABULARY):
            yield f"vocabulary {path.name}", sha256_of(path)


def read_settings(path: Path) -> dict[str, Any]:
    """Read an object of JSON; empty where there is no file."""
    settings = _json(path) if path.is_file() else {}
    if not isinstance(settings, dict):
        raise CheckpointError(f"{path} is damaged: an object is needed, got {shown(settings)}. Download it again")
    return settings


def _json(path: Path) -> Any:
    try:
        return parse_json(path.read_text("utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: {error}. Download the encoder again") from error
