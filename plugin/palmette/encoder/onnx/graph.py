"""An ONNX graph over a model's own weights, written without the ``onnx`` package.

A graph's file is a message of protobuf: a list of fields, each a key (number · 8 + type) and a value. Letters: B texts,
T tokens, H heads, w width of token states.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from palmette.encoder.local.files import WEIGHTS_FILE, Tensor, modules_of, read_settings, read_tensors

LAYER_NAMES = {
    "bert": "attention.self.query attention.self.key attention.self.value attention.output.dense "
    "attention.output.LayerNorm intermediate.dense output.dense output.LayerNorm",
    "mpnet": "attention.attn.q attention.attn.k attention.attn.v attention.attn.o attention.LayerNorm "
    "intermediate.dense output.dense output.LayerNorm",
    "distilbert": "attention.q_lin attention.k_lin attention.v_lin attention.out_lin sa_layer_norm ffn.lin1 ffn.lin2 "
    "output_layer_norm",
}
LAYER_NAMES |= dict.fromkeys(("roberta", "xlm-roberta", "camembert"), LAYER_NAMES["bert"])
"""Names of a layer's query, key, value, attention's output and norm, inner and outer projection, and last norm."""
_SETTINGS = {"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"}
_SETTINGS |= {"hidden_act": "activation"}
"""DistilBERT's names of the settings that are read."""
_TYPES = {"F32": 1, "F16": 10, "BF16": 16}
"""ONNX's numbers of the types that weights may have."""
_INT32 = 6
_INT64 = 7
_OPSET = 17
_CONTRIB = "com.microsoft"
"""Operators of ONNX Runtime: attention, and sums with what follows them."""
_POSITIONS = "embeddings.position_embeddings.weight"


class Written(NamedTuple):
    """A graph as bytes, the folder of its weights, and the number of its layers."""

    graph: bytes
    folder: Path
    layers: int


class UnsupportedTransformer(Exception):
    """The folder's transformer cannot be written as a graph here; the text says why."""


def write_graph(folder: Path, name: str) -> Written:
    """Write a sentence-transformers folder's transformer as a graph over its own safetensors, without torch.

    Input_ids, attention_mask, token_type_ids → last_hidden_state. The graph has a few kilobytes: ONNX Runtime maps the
    weights where they lie. So the encoder that torch computes and this one read the same files, and have one
    fingerprint. Known are the families whose layers are BERT's: attention, sum and norm, two projections with GELU
    between them, sum and norm.

    Raises:
        UnsupportedTransformer: The transformer is of another family, or its weights are none that a graph reads.
    """
    place = modules_of(folder, name)[0].folder
    config, file = read_settings(place / "config.json"), place / WEIGHTS_FILE
    family = config.get("model_type")
    if family not in LAYER_NAMES:
        raise UnsupportedTransformer(f"a transformer of the type {family!r}, not {', '.join(LAYER_NAMES)}")
    if not file.is_file():
        raise UnsupportedTransformer(f"weights in other files than {WEIGHTS_FILE}")
    if config.get("position_embedding_type", "absolute") != "absolute" or config.get("is_decoder"):
        raise UnsupportedTransformer("positions that are not absolute, or a decoder")
    facts: dict[str, Any] = {
        new: config.get(_SETTINGS.get(new, "") if family == "distilbert" else new) for new in _SETTINGS
    }
    if facts["hidden_act"] != "gelu":
        raise UnsupportedTransformer(f"the activation {facts['hidden_act']!r}, not 'gelu'")
    width, heads, layers = (facts[key] for key in list(_SETTINGS)[:3])
    if not all(type(size) is int and size > 0 for size in (width, heads, layers)) or width % heads:
        raise UnsupportedTransformer("no whole numbers as its sizes")
    # Tensors by their names without the model's prefix and in today's spelling.
    tensors = {}
    for name, tensor in read_tensors(file).items():
        name = name if name.startswith(("embeddings.", "encoder.", "transformer.")) else name.partition(".")[2]
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        tensors[name] = tensor
    real = file.resolve()
    graph = _Graph(tensors, real.name, width)
    epsilon = float(config.get("layer_norm_eps", 1e-12))
    _transform(graph, _embed(graph, family, config, epsilon), family, heads, layers, epsilon)
    return Written(graph.to_bytes(), real.parent, layers)


def _embed(graph: _Graph, family: str, config: Mapping[str, Any], epsilon: float) -> str:
    """Add the embeddings of words, positions and types: [B, T, w]."""
    graph.constant("zero", np.array(0, np.int64))
    graph.constant("one", np.array(1, np.int64))
    ones = graph.add("Add", graph.add("Mul", "input_ids", "zero"), "one")  # [B, T]
    if family in ("bert", "distilbert"):
        positions = graph.add("Sub", graph.add("CumSum", ones, "one"), "one")
    else:  # counted from after the padding token's number, which padding has itself
        graph.constant("padding", np.array(config.get("pad_token_id", 1), np.int64))
        word = graph.add("Cast", graph.add("Not", graph.add("Equal", "input_ids", "padding")), to=_INT64)
        positions = graph.add("Add", graph.add("Mul", graph.add("CumSum", word, "one"), word), "padding")
    parts = {"word": "input_ids", "position": positions}
    if "embeddings.token_type_embeddings.weight" in graph.tensors:
        parts["token_type"] = "token_type_ids"
    looked_up = [
        graph.add("Gather", graph.weight(f"embeddings.{part}_embeddings.weight", None, graph.width), rows)
        for part, rows in parts.items()
    ]
    total = looked_up[0]
    for each in looked_up[1:]:
        total = graph.add("Add", total, each)
    norm = graph.norm("embeddings.LayerNorm")
    return graph.add("LayerNormalization", total, *norm, axis=-1, epsilon=epsilon)


def _transform(graph: _Graph, states: str, family: str, heads: int, layers: int, epsilon: float) -> None:
    """Add the layers to states [B, T, w]; projections compute on [B·T, w]."""
    w, shape = graph.width, graph.add("Shape", states)
    graph.constant("rows", np.array([-1, w], np.int64))
    mask = graph.add("Cast", "attention_mask", to=_INT32)
    bias = _relative_bias(graph, shape, heads) if family == "mpnet" else ""
    x = graph.add("Reshape", states, "rows")
    for layer in range(layers):
        prefix = f"{'transformer' if family == 'distilbert' else 'encoder'}.layer.{layer}."
        query, key, value, attended, norm, inner, outer, last_norm = (
            prefix + name for name in LAYER_NAMES[family].split()
        )
        # 1. attention of all heads: [B, T, w]
        projected = [graph.add("Gemm", x, *graph.projection(name, w), transB=1) for name in (query, key, value)]
        three = [graph.add("Reshape", each, shape) for each in projected]
        attention = graph.add("MultiHeadAttention", *three, "", mask, bias, domain=_CONTRIB, num_heads=heads)
        # 2. its projection, the sum with the layer's input, and the norm: [B·T, w]
        weight, offset = graph.projection(attended, w)
        y = graph.add("Gemm", graph.add("Reshape", attention, "rows"), weight, transB=1)
        norms = graph.norm(norm)
        x = graph.add("SkipLayerNormalization", y, x, *norms, offset, domain=_CONTRIB, epsilon=epsilon)
        # 3. two projections with GELU between them, the sum and the norm
        weight, offset = graph.projection(inner, w)
        y = graph.add("BiasGelu", graph.add("Gemm", x, weight, transB=1), offset, domain=_CONTRIB)
        weight, offset = graph.projection(outer, None)
        y = graph.add("Gemm", y, weight, transB=1)
        norms = graph.norm(last_norm)
        x = graph.add("SkipLayerNormalization", y, x, *norms, offset, domain=_CONTRIB, epsilon=epsilon)
    graph.add("Reshape", x, shape, output="last_hidden_state")


def _relative_bias(graph: _Graph, shape: str, heads: int) -> str:
    """Add what MPNet's attention gains by the distance of two tokens: [1, H, T, T]."""
    table, places = graph.shape("encoder.relative_attention_bias.weight"), graph.shape(_POSITIONS)[0]
    if len(table) != 2 or table[1] != heads:
        raise UnsupportedTransformer(f"a bias of the shape {list(table)}")
    buckets = _distance_buckets(places, table[0])
    graph.constant("buckets", buckets)  # [P, P]
    for name, values in (("from", [0, 0]), ("axes", [0, 1]), ("tokens", [1]), ("pair", [0])):
        graph.constant(name, np.array(values, np.int64))
    tokens = graph.add("Gather", shape, "tokens")  # [1]
    graph.add("Concat", tokens, tokens, output="to", axis=0)
    near = graph.add("Cast", graph.add("Slice", "buckets", "from", "to", "axes"), to=_INT64)  # [T, T]
    weight = graph.weight("encoder.relative_attention_bias.weight", None, heads)
    moved = graph.add("Transpose", graph.add("Gather", weight, near), perm=[2, 0, 1])
    return graph.add("Unsqueeze", moved, "pair")


def _distance_buckets(places: int, count: int) -> NDArray[np.uint8]:
    """Number the distances between tokens [P, P] as T5 does: near ones each, far ones by their logarithm."""
    far = np.arange(places)[None, :] - np.arange(places)[:, None]
    half, distance = count // 2, np.abs(far)
    exact = half // 2
    log = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(exact)) / np.float32(math.log(128 / exact))
    large = np.minimum(exact + (log * np.float32(half - exact)).astype(np.int64), half - 1)
    return np.asarray(np.where(far > 0, half, 0) + np.where(distance < exact, distance, large), np.uint8)


class _Graph:
    """A graph in the making: nodes, constants, and weights that lie in a file.

    Its messages have fields with these numbers, as in ``onnx.proto``:

        model      1 ir_version   7 graph   8 opset_import (1 domain, 2 version)
        graph      1 node   2 name   5 initializer   11 input   12 output
        node       1 input   2 output   4 op_type   5 attribute   7 domain
        attribute  1 name   2 f   3 i   8 ints   20 type (1 float, 2 int, 7 ints)
        tensor     1 dims   2 data_type   8 name   9 raw_data   13 external_data (1 key, 2 value)   14 data_location
        input      1 name   2 type (1 tensor_type (1 elem_type, 2 shape (1 dim (1 dim_value or 2 dim_param))))
    """

    def __init__(self, tensors: Mapping[str, Tensor], file: str, width: int) -> None:
        self.width, self.tensors, self._file = width, tensors, file
        self._nodes: list[bytes] = []
        self._constants: dict[str, bytes] = {}

    def add(self, kind: str, *inputs: str, output: str = "", domain: str = "", **attributes: Any) -> str:
        """Add a node, and return the name of its output."""
        output = output or f"value {len(self._nodes)}"
        fields = [*((1, name) for name in inputs), (2, output), (4, kind), (7, domain)]
        self._nodes.append(_message(*fields, *((5, _attribute(*each)) for each in attributes.items())))
        return output

    def constant(self, name: str, values: NDArray[Any]) -> None:
        """Add numbers that stand in the graph."""
        kind = {"int64": _INT64, "uint8": 2}[values.dtype.name]
        dims = ((1, size) for size in values.shape)
        self._constants[name] = _message(*dims, (2, kind), (8, name), (9, values.tobytes()))

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor; one that is not there raises UnsupportedTransformer."""
        if name not in self.tensors:
            raise UnsupportedTransformer(f"no tensor {name!r}")
        return self.tensors[name].shape

    def weight(self, name: str, *shape: int | None) -> str:
        """Add a tensor of the file as float32, whose known sizes are checked."""
        actual = self.shape(name)
        kind, _, start, size = self.tensors[name]
        if len(actual) != len(shape) or any(b not in (None, a) for a, b in zip(actual, shape, strict=True)):
            raise UnsupportedTransformer(f"{name!r} of the shape {list(actual)}")
        if kind not in _TYPES or size != math.prod(actual) * (4 if kind == "F32" else 2):
            raise UnsupportedTransformer(f"{name!r} of the type {kind}")
        where = [("location", self._file), ("offset", str(start)), ("length", str(size))]
        outside = ((13, _message((1, key), (2, value))) for key, value in where)
        dims = ((1, length) for length in actual)
        self._constants[name] = _message(*dims, (2, _TYPES[kind]), (8, name), *outside, (14, 1))  # 14: in a file
        return name if kind == "F32" else self.add("Cast", name, to=1)

    def projection(self, name: str, width: int | None) -> list[str]:
        """Add the weight [·, ``width``] and the bias of a projection; ``None`` leaves the width unchecked."""
        return [self.weight(f"{name}.weight", None, width), self.weight(f"{name}.bias", None)]

    def norm(self, name: str) -> list[str]:
        """Add the weight [w] and the bias of a norm."""
        return [self.weight(f"{name}.weight", self.width), self.weight(f"{name}.bias", None)]

    def to_bytes(self) -> bytes:
        """Return the graph as a model of ONNX."""

        def value(name: str, kind: int, sizes: Iterable[str | int]) -> bytes:
            """Describe an input or output: its name, type, and sizes by number or name."""
            dims = _message(*((1, _message((1 if isinstance(size, int) else 2, size))) for size in sizes))
            return _message((1, name), (2, _message((1, _message((1, kind), (2, dims))))))

        inputs = [value(name, _INT64, "BT") for name in ("input_ids", "attention_mask", "token_type_ids")]
        graph = _message(
            *((1, node) for node in self._nodes),
            (2, "transformer"),
            *((5, tensor) for tensor in self._constants.values()),
            *((11, each) for each in inputs),
            (12, value("last_hidden_state", 1, ["B", "T", self.width])),
        )
        domains = [_message((1, domain), (2, version)) for domain, version in (("", _OPSET), (_CONTRIB, 1))]
        return _message((1, 8), *((8, domain) for domain in domains), (7, graph))


def _attribute(name: str, value: Any) -> bytes:
    """Write an attribute of a node: a number, or a list of whole ones."""
    if isinstance(value, list):
        return _message((1, name), *((8, each) for each in value), (20, 7))
    return _message((1, name), *([(2, value), (20, 1)] if isinstance(value, float) else [(3, value), (20, 2)]))


def _message(*fields: tuple[int, int | float | str | bytes]) -> bytes:
    """Write fields by number: whole numbers as they are, others as four bytes, or as a length and so many bytes."""
    out = bytearray()
    for number, value in fields:
        if isinstance(value, int):
            out += _varint(number << 3) + _varint(value % (1 << 64))
        elif isinstance(value, float):
            out += _varint(number << 3 | 5) + struct.pack("<f", value)
        else:
            content = value.encode() if isinstance(value, str) else value
            out += _varint(number << 3 | 2) + _varint(len(content)) + content
    return bytes(out)


def _varint(value: int) -> bytes:
    """Write a whole number, seven bits a byte."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))
