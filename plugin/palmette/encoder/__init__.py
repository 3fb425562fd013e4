"""Texts to states: one frozen encoder gives pooled, sentence, token and layer states from one forward pass.

torch is loaded with the first name that is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from palmette.errors import load_name

if TYPE_CHECKING:
    from palmette.encoder.base import Encoder as Encoder
    from palmette.encoder.base import Kind as Kind
    from palmette.encoder.base import Output as Output
    from palmette.encoder.cache import CachedEncoder as CachedEncoder
    from palmette.encoder.cache import EncodingCache as EncodingCache
    from palmette.encoder.fake import FakeEncoder as FakeEncoder
    from palmette.encoder.load import load_encoder as load_encoder
    from palmette.encoder.local.backbone import Backbone as Backbone
    from palmette.encoder.local.sentence_transformer import SentenceEncoder as SentenceEncoder
    from palmette.encoder.onnx.export import export_onnx as export_onnx
    from palmette.encoder.states import States as States

_HOMES = {
    "Backbone": "local.backbone",
    "CachedEncoder": "cache",
    "Encoder": "base",
    "EncodingCache": "cache",
    "FakeEncoder": "fake",
    "Kind": "base",
    "Output": "base",
    "SentenceEncoder": "local.sentence_transformer",
    "States": "states",
    "export_onnx": "onnx.export",
    "load_encoder": "load",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return load_name(f"{__name__}.{_HOMES[name]}", name)
