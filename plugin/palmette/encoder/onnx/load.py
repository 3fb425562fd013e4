"""Loads ONNX encoders, and shares equal ones. Nothing heavy is imported before one is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from palmette.encoder.onnx.encoder import OnnxEncoder

GRAPHS = ("onnx/model.onnx", "model.onnx")
"""Where the graph lies in a folder, unless the encoder's name says it."""

_shared: WeakValueDictionary[tuple[object, ...], OnnxEncoder] = WeakValueDictionary()


def load_onnx(
    source: Any,
    graph: str | None,
    batch_size: int,
    threads: int | None,
    *,
    max_length: int | None,
    prompts: Mapping[str, str] | None,
    truncate: int | None,
) -> OnnxEncoder:
    """Load the encoder of a folder, name and revision (``source``); loading the same twice gives the same object."""
    from palmette.encoder.onnx.encoder import OnnxEncoder
    from palmette.encoder.onnx.folder import OnnxFolder

    files = OnnxFolder.read(source.folder, graph, GRAPHS, source.name)
    options: dict[str, Any] = {"name": source.name, "revision": source.revision}
    options |= {"batch_size": batch_size, "max_length": files.limit(max_length), "threads": threads}

    def key(prompts: Mapping[str, str] | None) -> tuple[object, ...]:
        listed = None if prompts is None else repr(sorted(prompts.items()))
        return files.content, listed, truncate, *options.values()

    encoder = _shared.get(key(prompts))
    if encoder is None:
        made = OnnxEncoder(files, prompts=prompts, truncate=truncate, **options)
        encoder = _shared[key(prompts)] = _shared.setdefault(key(made.prompts), made)
    return encoder
