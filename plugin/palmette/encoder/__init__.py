"""Texts to states: one frozen encoder gives pooled, sentence, token and layer states from one forward pass.

torch is loaded with the first name that is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from palmette.errors import load_name

if TYPE_CHECKING:
    from palmette.encoder.base import Encoder, Kind, Output
    from palmette.encoder.cache import CachedEncoder, EncodingCache
    from palmette.encoder.fake import FakeEncoder
    from palmette.encoder.load import load_encoder
    from palmette.encoder.local.backbone import Backbone
    from palmette.encoder.local.sentence_transformer import SentenceEncoder
    from palmette.encoder.onnx.export import Export, export_onnx
    from palmette.encoder.sentences import Sentences
    from palmette.encoder.sentences.splitting import split_sentences
    from palmette.encoder.states import States

__all__ = [
    "Backbone",
    "CachedEncoder",
    "Encoder",
    "EncodingCache",
    "Export",
    "FakeEncoder",
    "Kind",
    "Output",
    "SentenceEncoder",
    "Sentences",
    "States",
    "export_onnx",
    "load_encoder",
    "split_sentences",
]

_HOMES = {
    "Backbone": "local.backbone",
    "CachedEncoder": "cache",
    "EncodingCache": "cache",
    "Export": "onnx.export",
    "FakeEncoder": "fake",
    "SentenceEncoder": "local.sentence_transformer",
    "Sentences": "sentences",
    "States": "states",
    "export_onnx": "onnx.export",
    "load_encoder": "load",
    "split_sentences": "sentences.splitting",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return load_name(f"{__name__}.{_HOMES.get(name, 'base')}", name)
