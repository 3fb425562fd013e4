"""Loads ONNX encoders, and shares equal ones. Nothing heavy is imported before one is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from palmette.encoder.onnx.encoder import OnnxEncoder

GRAPHS = ("onnx/model.onnx", "model.onnx")
"""Where the graph lies in a folder, unless the encoder's name says it."""

_shared: WeakValueDictionary[tuple[object, ...], OnnxEncoder] = WeakValueDictionary()


def load_onnx(
    source: Any, graph: str | None, batch_size: int, max_length: int | None, threads: int | None
) -> OnnxEncoder:
    """Load the encoder of a folder, name and revision (``source``); loading the same twice gives the same object."""
    from palmette.encoder.onnx.encoder import OnnxEncoder
    from palmette.encoder.onnx.folder import OnnxFolder

    files = OnnxFolder.read(source.folder, graph, GRAPHS, source.name)
    options: dict[str, Any] = {"name": source.name, "revision": source.revision}
    options |= {"batch_size": batch_size, "max_length": files.limit(max_length), "threads": threads}
    key = (files.content, *options.values())
    encoder = _shared.get(key)
    if encoder is None:
        encoder = _shared[key] = OnnxEncoder(files, **options)
    return encoder
