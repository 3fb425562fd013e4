"""The networks as the paper prints them, their start at the encoder's own query, and their training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from palmette import Document, FakeEncoder, LayersModel, RetrievalData, load_encoder
from palmette.encoder import Encoder, States
from palmette.methods.layers.config import LayersSearch
from palmette.methods.layers.module import LayerNetworks, layer_summary
from support.tiny import pairs
from support.tiny_encoder import save_tiny_encoder, states_of

QUICK: dict[str, Any] = {"steps": 0, "progress": False}


def tiny(folder: Path, **options: Any) -> Encoder:
    return load_encoder(str(save_tiny_encoder(folder / "encoder", layers=4, **options)), dtype="float32")


@pytest.mark.parametrize(
    ("trains", "family", "pooling"),
    [("heads", "bert", "mean"), ("all", "bert", "mean"), ("all", "bert", "cls"), ("heads", "roberta", "mean")],
)
def test_copies_begin_as_the_encoder_with_layers_left_out(
    tmp_path: Path, trains: Any, family: str, pooling: str
) -> None:
    encoder = tiny(tmp_path, family=family, pooling=pooling)
    model = LayersModel.fit(pairs(), encoder=encoder, trains=trains, **QUICK)
    assert model.config.from_encoder
    assert [model.config.depth_of(layer) for layer in model.config.query_layers] == [2, 1, 0, 0]
    texts = ["the cat sat on the mat", "how do i open a file ?", "bird"]
    asked = model.encode_queries(texts, LayersSearch())["layers"]  # [3, 4, d]
    own = encoder.encode_queries(texts)
    states = states_of(encoder, texts, kind="query", outputs=("layers",))
    stack = encoder.model[0].auto_model.encoder.layer  # type: ignore[attr-defined]
    hidden = torch.where(states.mask, 0.0, -1e9)[:, None, None].to(encoder.device)
    for layer, rest in ((1, stack[2:]), (2, stack[3:])):
        x = states.layers[:, layer]
        for part in rest:
            out = part(x, hidden)
            x = out[0] if isinstance(out, tuple) else out
        mean, first = layer_summary(x, states.mask).chunk(2, dim=1)
        expected = F.normalize(mean if pooling == "mean" else first, dim=1)
        np.testing.assert_allclose(asked[:, layer - 1], expected.detach().cpu(), atol=2e-4)
    np.testing.assert_allclose(asked[:, 3], own, atol=1e-5)  # the last: the encoder's own
    assert (asked[:, 2] * own).sum(1).mean() > 0.7  # before it: a linear map
    assert LayerNetworks(model.config).weights().tolist() == pytest.approx([1 / 6, 1 / 6, 1 / 6, 1 / 2])


def test_training_finds_what_the_start_did_not() -> None:
    """A random start, on questions that share no word with what they ask for."""
    asked = [(f"{one} question", f"{other} text") for one, other in zip("abcdefgh", "ijklmnop", strict=True)]
    options: dict[str, Any] = {"start": "random", "trains": "all", "batch_size": 8, "progress": False}
    data = RetrievalData(
        "toy",
        [Document(id=text, text=text) for _, text in asked],
        {str(n): query for n, (query, _) in enumerate(asked)},
        {split: {str(n): {text: 1} for n, (_, text) in enumerate(asked)} for split in ("train", "dev")},
    )
    model = LayersModel.fit(data, encoder=FakeEncoder(32), steps=60, learning_rate=0.003, **options)
    assert model.record.metrics["ndcg@10"] > 0.95
    assert sum(model.module.weights().tolist()) == pytest.approx(1)


class Long(FakeEncoder):
    """Documents' vectors of any length."""

    def forward(self, texts: Any, kind: Any, outputs: Any, depth: int | None = None) -> States:
        states = super().forward(texts, kind, outputs, depth)
        if kind == "query" or states.pooled is None:
            return states
        lengths = np.array([1.0 + 20 * (len(text) % 5 == 0) for text in texts], np.float32)
        return replace(states, pooled=states.pooled * lengths[:, None])


def test_a_cosine_is_validated_and_weighted_as_a_cosine(tmp_path: Path) -> None:
    made = {}
    for encoder in (FakeEncoder(48), Long(48)):
        encoder.fingerprint = type(encoder).__name__
        model = LayersModel.fit(pairs(), encoder=encoder, cache=tmp_path, **QUICK)
        made[type(encoder)] = model.record.metrics, model.module.weights().tolist()
        inner = LayersModel.fit(pairs(), encoder=encoder, cache=tmp_path, similarity="inner_product", **QUICK)
        assert (inner.record.metrics["ndcg@10"] > 0.5) == (type(encoder) is FakeEncoder)
    assert made[Long][0] == pytest.approx(made[FakeEncoder][0])
    assert made[Long][1] == pytest.approx(made[FakeEncoder][1])
