"""The folder of an ONNX encoder: which files are read, whether they fit each other, and their fingerprint.

It is a sentence-transformers folder whose transformer is an ONNX graph, as many repositories have one:

    onnx/model.onnx, model.onnx_data    the transformer: token numbers → token states; its weights
    tokenizer.json                      texts → token numbers
    modules.json, 1_Pooling/, 2_Dense/  what follows the transformer
    config_sentence_transformers.json   prompts
    sentence_bert_config.json           tokens of a pass
    palmette_onnx.json                  the model that it was exported from, if palmette exported it
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from palmette.encoder.local.files import WEIGHTS_FILE, fingerprint, module_content, modules_of, read_settings, sha256_of
from palmette.encoder.onnx.graph import UnsupportedTransformer, Written, write_graph
from palmette.encoder.onnx.pooling import ACTIVATIONS, Dense, Head, pooling_name
from palmette.errors import CheckpointError, ConfigError, shown

RECORD = "palmette_onnx.json"
"""File that says what an encoder was exported from."""
TOKENIZER = "tokenizer.json"
GRAPH_PRECISIONS = ("float32", "int8")
"""How the weights of an exported graph are kept."""
DEFAULT_MAX_LENGTH = 8192
"""Tokens of a pass where no file says how many the model reads."""
_KINDS = ("Pooling", "Dense", "Normalize", "Dropout")
"""Modules that may follow the transformer."""


@dataclass(frozen=True)
class OnnxFolder:
    """Files of an ONNX encoder, and the settings in them.

    Attributes:
        path: The folder.
        graph: File of the transformer.
        name: Name of the encoder, for messages.
        external: Files beside the graph that hold its weights, by the name that exporters give them.
        head: Everything after the transformer.
        prompts: The model's prompts, and its default one by ``""``.
        written: Graph that palmette writes over the model's own weights, which lie at ``graph``.
    """

    path: Path
    graph: Path
    name: str
    external: tuple[Path, ...]
    head: Head
    prompts: Mapping[str, str]
    written: Written | None = None

    @classmethod
    def over_weights(cls, path: Path, name: str) -> OnnxFolder:
        """Read a sentence-transformers folder, and write the graph of its transformer.

        Raises:
            UnsupportedTransformer: The encoder is none that can be computed so.
        """
        kinds = [module.kind for module in modules_of(path, name)]
        body = read_settings(path / "sentence_bert_config.json")
        if kinds[:1] != ["Transformer"] or not set(kinds[1:]) <= set(_KINDS) or body.get("do_lower_case"):
            raise UnsupportedTransformer(f"the modules {', '.join(kinds)}")
        if not (path / TOKENIZER).is_file():
            raise UnsupportedTransformer(f"no {TOKENIZER}")
        if modules_of(path, name)[0].folder != path:
            raise UnsupportedTransformer("a transformer in a folder of its own")
        written = write_graph(path, name)
        return cls._read(path, path / WEIGHTS_FILE, name, (), written)

    @classmethod
    def read(cls, path: Path, graph: str | None, usual: Sequence[str], name: str) -> OnnxFolder:
        """Read a folder, with its graph in one of the ``usual`` places unless one is named.

        Raises:
            CheckpointError: A file is missing, damaged or does not fit.
        """
        file = _find_graph(path, usual if graph is None else (graph,), name)
        if not (path / TOKENIZER).is_file():
            raise CheckpointError(f"encoder {name!r}: {path} has no {TOKENIZER}; {_export(name)}")
        try:
            return cls._read(path, file, name, tuple(sorted(file.parent.glob(f"{file.name}?*"))))
        except UnsupportedTransformer as error:
            raise CheckpointError(f"encoder {name!r}: palmette computes no ONNX graph before {error}") from None

    @classmethod
    def _read(
        cls, path: Path, file: Path, name: str, external: tuple[Path, ...], written: Written | None = None
    ) -> OnnxFolder:
        """Read the settings beside a graph."""
        head = _read_head(path, name)
        facts = read_settings(path / "config_sentence_transformers.json")
        prompts = facts.get("prompts") or {}
        if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
            raise CheckpointError(f"encoder {name!r}: its prompts are no texts by name: {shown(prompts)}")
        default = prompts.get(facts.get("default_prompt_name") or "", "")
        head = replace(head, truncate=facts.get("truncate_dim"))
        return cls(path, file, name, external, head, {**prompts, "": default}, written)

    @cached_property
    def max_length(self) -> int:
        """Tokens of a pass, those at both ends included."""
        bodies = [read_settings(file) for file in sorted(self.path.glob("sentence_*_config.json"))]
        limits = [facts.get("max_seq_length") for facts in bodies]
        limits.append(read_settings(self.path / "tokenizer_config.json").get("model_max_length"))
        known = [limit for limit in [*limits, self.positions] if type(limit) is int and 3 <= limit < 1_000_000]
        return known[0] if known else DEFAULT_MAX_LENGTH

    @cached_property
    def positions(self) -> int | None:
        """Positions that the transformer has embeddings of."""
        limit = read_settings(self.path / "config.json").get("max_position_embeddings")
        return limit if type(limit) is int and limit >= 3 else None

    @cached_property
    def content(self) -> str:
        """SHA-256 over every file that is read: equal content gives equal vectors."""
        files: dict[str, Any] = {
            "graph": sha256_of(self.graph),
            "external": {file.name: sha256_of(file) for file in self.external},
            "tokenizer": sha256_of(self.path / TOKENIZER),
            "prompts": {key: text for key, text in self.prompts.items() if text},
            "truncate": self.head.truncate,
        }
        for number, (kind, module) in enumerate(modules_of(self.path, self.name)):
            files[f"{number} {kind}"] = dict(module_content(module)) if number else None
        return hashlib.sha256(json.dumps(files, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()

    def limit(self, tokens: int | None) -> int:
        """Choose the tokens of a pass; more than the graph has positions for raises."""
        most = self.positions
        if tokens is None:
            return min(self.max_length, most or self.max_length)
        if tokens < 3 or (most is not None and tokens > most):
            raise ConfigError(f"max_length of {self.name!r} must be between 3 and {most}, got {tokens!r}")
        return tokens

    def fingerprint(self, max_length: int) -> str:
        """SHA-256 over what determines the vectors."""
        if self.written is not None:
            return fingerprint(self.path, max_length)
        return hashlib.sha256(f"onnx encoder 1\0{self.content}\0{max_length}".encode()).hexdigest()

    @cached_property
    def record(self) -> Record | None:
        """Record of the export; ``None`` if palmette did not export the encoder."""
        facts = read_settings(self.path / RECORD)
        if not facts:
            return None
        try:
            record = Record(**facts)
            if not isinstance(record.source, dict) or record.precision not in GRAPH_PRECISIONS:
                raise TypeError(f"its source or precision is {shown(record.precision)}")
        except TypeError as error:
            raise CheckpointError(f"{self.path / RECORD} is damaged: {error}; export the encoder again") from error
        if record.content != self.content:
            raise CheckpointError(
                f"encoder {self.name!r}: files of {self.path} have changed since it was exported from "
                f"{shown(record.source.get('name'))}; export it again, or remove {RECORD} to use it as another encoder"
            )
        return record


@dataclass(frozen=True)
class Record:
    """Record of an export: the exported encoder, and the distance of the copy's vectors from its own."""

    source: Mapping[str, Any]
    """Config of the encoder that it stands for: name, revision, fingerprint, max_length, dimension, prompts."""
    precision: str
    """``float32``, or ``int8`` for weights of eight bits."""
    content: str
    """SHA-256 over the files that the export wrote."""
    checked: Mapping[str, float]
    """Comparison with the source on a few texts: their number, the lowest cosine and the largest difference."""
    versions: Mapping[str, str]
    """Versions of the programs that wrote it."""


def _find_graph(path: Path, places: Sequence[str], name: str) -> Path:
    """Find the first of these ONNX files; the error without one lists the graphs that the folder has."""
    for file in (path / place for place in places):
        if file.is_file():
            return file
    others = sorted(str(file.relative_to(path)) for file in path.rglob("*.onnx"))
    expected = " or ".join(places)
    hint = f"It has {', '.join(others)}: append one of them to the name" if others else f"It has none; {_export(name)}"
    raise CheckpointError(f"encoder {name!r}: {path} has no {expected}. {hint}")


def _export(name: str) -> str:
    source = name.removeprefix("onnx:")
    return f"write one with `palmette export-onnx {source} FOLDER` and give 'onnx:FOLDER'"


def _read_head(path: Path, name: str) -> Head:
    """Read everything after the transformer."""
    modules = modules_of(path, name)
    kinds = [module.kind for module in modules]
    if kinds[:1] != ["Transformer"] or kinds[1:2] not in ([], ["Pooling"]) or not set(kinds[1:]) <= set(_KINDS):
        raise CheckpointError(
            f"encoder {name!r}: an ONNX encoder is a Transformer, a Pooling and perhaps Dense and Normalize; "
            f"{path} has {', '.join(kinds)}"
        )
    if len(modules) == 1:
        return Head()
    pooling = pooling_name(read_settings(modules[1].folder / "config.json"))
    if pooling is None:
        raise UnsupportedTransformer("a pooling other than mean, cls and lasttoken, or one that leaves the prompt out")
    after: list[Dense | None] = []
    for kind, folder in modules[2:]:
        if kind == "Dense":
            after.append(_read_dense(folder, name))
        elif kind == "Normalize":
            after.append(None)
        elif kind == "Pooling":
            raise CheckpointError(f"encoder {name!r}: {path} has two poolings")
    return Head(pooling, after)


def _read_dense(folder: Path, name: str) -> Dense:
    """Read a projection from safetensors."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    config, file = read_settings(folder / "config.json"), folder / "model.safetensors"
    function = str(config.get("activation_function", "torch.nn.modules.activation.Tanh")).rpartition(".")
    if function[2] not in ACTIVATIONS or not function[0].startswith("torch.nn."):
        raise CheckpointError(
            f"encoder {name!r}: {folder} has the function {shown(''.join(function))}; palmette knows "
            f"{', '.join(ACTIVATIONS)} of torch"
        )
    if not file.is_file():
        raise CheckpointError(f"encoder {name!r}: {folder} has no {file.name}, and palmette reads no other weights")
    try:
        weights = {key: np.asarray(value, np.float32) for key, value in load_file(file).items()}
    except (KeyError, SafetensorError) as error:  # KeyError: the type of the weights
        raise CheckpointError(f"{file} has no weights in float32 or float16 ({error}): export it again") from error
    weight, bias = weights.pop("linear.weight", None), weights.pop("linear.bias", None)
    fits = weight is not None and weight.ndim == 2 and (bias is None or bias.shape == weight.shape[:1])
    if weights or not fits or weight is None:
        others = ", ".join(sorted(weights)) or "weights of other shapes"
        raise CheckpointError(f"encoder {name!r}: {file} holds no projection but {others}")
    return Dense(np.ascontiguousarray(weight.T), bias, function[2])
