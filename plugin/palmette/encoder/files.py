"""A sentence-transformers folder on disk: is it safe and whole, and what is its fingerprint?"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from palmette.config import parse_json
from palmette.errors import CheckpointError

# Written by the program that saved the files, without effect on the vectors.
_NOISE = set(
    "__version__ _attn_implementation_autoset _name_or_path architectures dtype gradient_checkpointing max_seq_length "
    "name_or_path similarity_fn_name torch_dtype transformers_version use_cache".split()
)
_WEIGHTLESS = ("Pooling", "Normalize", "Dropout")
_ROUTERS = ("Router", "Asym")
_FOREIGN = "needs its own code ({}); palmette runs no code from a checkpoint"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.h5", "*.msgpack")
_TOKENIZER = "vocab.txt vocab.json merges.txt *.model added_tokens.json special_tokens_map.json".split()


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, computed once per process as long as size and time stay the same."""
    real = path.resolve()
    stat = real.stat()
    return _sha256(real, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=256)
def _sha256(path: Path, size: int, mtime: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_folder(folder: Path, name: str) -> None:
    """Raise CheckpointError unless every module has safetensors weights and only code of the library."""
    if not (folder / "config.json").is_file() and not (folder / "modules.json").is_file():
        raise CheckpointError(f"encoder {name!r}: {folder} holds no model (neither config.json nor modules.json)")
    if "auto_map" in _json(folder / "config.json"):
        raise CheckpointError(f"encoder {name!r} {_FOREIGN.format('auto_map')}")
    for kind, module, parts in _modules(folder, name):
        if kind in _WEIGHTLESS or any(path for part in parts for path in part.glob("*.safetensors")):
            continue
        pickled = [path.name for pattern in _PICKLES for part in parts for path in part.glob(pattern)]
        found = f"only pickled weights ({pickled[0]})" if pickled else "no weights"
        raise CheckpointError(
            f"encoder {name!r}: {kind} has {found} in {module}; palmette loads model.safetensors only. "
            "Choose a revision that has it, or convert: SentenceTransformer(...).save_pretrained(folder)"
        )


def fingerprint(folder: Path, max_length: int) -> str:
    """SHA-256 over what determines the vectors: weights, configs, tokenizer, modules, prompts, limit."""
    content: dict[str, Any] = {"max_length": max_length}
    for number, (kind, module, parts) in enumerate(_modules(folder, str(folder))):
        for part in parts:
            content[f"{number} {kind} {part.relative_to(module).as_posix()}"] = dict(_module_content(part))
    model = _json(folder / "config_sentence_transformers.json")
    content["prompts"] = {key: text for key, text in (model.get("prompts") or {}).items() if text}
    content["model"] = {key: model.get(key) for key in ("default_prompt_name", "truncate_dim")}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _modules(folder: Path, name: str) -> list[tuple[str, Path, list[Path]]]:
    """List each module's class, folder, and folders with files: the root's own only, unless it is a router."""
    path, root = folder / "modules.json", folder.resolve()
    # A plain transformer gets a pooling that has no file.
    rows = _json(path) if path.is_file() else [{"type": "sentence_transformers.models.Transformer"}]
    if not isinstance(rows, list):
        raise CheckpointError(f"encoder {name!r}: {path} is no list of modules")
    modules = []
    for row in rows:
        kind = str(row.get("type"))
        if not kind.startswith("sentence_transformers."):
            raise CheckpointError(f"encoder {name!r} {_FOREIGN.format(kind)}")
        kind = kind.rpartition(".")[2]
        module = (folder / str(row.get("path", ""))).resolve()
        if not module.is_relative_to(root):
            raise CheckpointError(f"encoder {name!r}: modules.json points outside the folder: {row['path']!r}")
        below = module != root or kind in _ROUTERS
        module = module if module != root else folder
        parts = [module, *sorted(part for part in module.rglob("*") if below and part.is_dir())]
        modules.append((kind, module, parts))
    return modules


def _module_content(part: Path) -> Iterator[tuple[str, Any]]:
    for path in sorted(part.glob("*.safetensors")):
        yield path.name, sha256_of(path)
    for name in ("config.json", "sentence_bert_config.json", "router_config.json"):
        if settings := _settings(_json(part / name)):
            yield name, settings
    tokenizer = _json(part / "tokenizer.json")
    if tokenizer:  # complete in itself; how it pads and cuts is set at run time
        text = json.dumps({**tokenizer, "padding": None, "truncation": None}, sort_keys=True)
        yield "tokenizer.json", hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        return
    for pattern in _TOKENIZER:
        for path in sorted(part.glob(pattern)):
            yield path.name, sha256_of(path)
    if settings := _settings(_json(part / "tokenizer_config.json")):
        yield "tokenizer_config.json", settings


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    unused = {key for key, value in config.items() if key.startswith("pooling_mode_") and value is False}
    return {key: value for key, value in config.items() if key not in _NOISE | unused}


def _json(path: Path) -> Any:
    if not path.is_file():
        return {}
    try:
        return parse_json(path.read_text("utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: {error}. Download the encoder again") from error
