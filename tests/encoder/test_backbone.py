"""The trainable copy of an encoder is the encoder, until it learns."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from palmette import FakeEncoder, load_encoder
from palmette.encoder import Encoder
from palmette.encoder.local.backbone import Backbone, set_dropout
from palmette.errors import ConfigError
from support.tiny_encoder import save_tiny_encoder, states_of

TEXTS = ["the cat sat on the mat", "dog", "", "a bird ran under the roof . " * 30, "how do i open a file"]


def load(folder: Path, **options) -> Encoder:
    return load_encoder(save_tiny_encoder(folder, **options), dtype="float32", device="cpu")


def backbone(folder: Path, new_tokens: int = 0, **options) -> Backbone:
    return Backbone.of(load(folder, **options), new_tokens=new_tokens).eval()


@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet", "distilbert", "electra"])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_asked_plainly_it_is_the_encoder(family: str, pooling: str, tmp_path) -> None:
    options = {"family": family, "pooling": pooling, "dense": 8, "prompts": {"query": "query : "}}
    encoder = load(tmp_path / "m", **options)
    copy = Backbone.of(encoder, new_tokens=3).eval()
    assert (copy.width, copy.dimension, copy.pooling) == (16, 8, pooling)
    for kind in ("query", "document"):
        texts = TEXTS[:2] if kind == "query" else TEXTS
        with torch.no_grad():
            vectors = copy.embed(texts, kind).numpy()
        np.testing.assert_allclose(vectors, states_of(encoder, texts, kind=kind).pooled, atol=1e-6)
    states = states_of(encoder, TEXTS[:3], outputs=("tokens",))
    ids, there = copy.plain(TEXTS[:3])
    with torch.no_grad():
        found = copy(ids, there)
    np.testing.assert_allclose(found[there], states.tokens[there], atol=1e-5)


def test_new_tokens_begin_as_the_first_one_and_learn(tmp_path) -> None:
    copy = backbone(tmp_path / "m", new_tokens=2)
    ids, there = copy.plain(["the cat"])
    swapped = ids.clone()
    swapped[0, 0] = copy.vocabulary + 1
    torch.testing.assert_close(copy(swapped, there), copy(ids, there))
    copy(swapped, there)[0, 1, 0].backward()
    assert copy.new_tokens.grad[1].abs().sum() > 0
    assert copy.new_tokens.grad[0].abs().sum() == 0


@pytest.mark.parametrize("family", ["roberta", "mpnet"])
def test_positions_may_be_given(family: str, tmp_path) -> None:
    copy = backbone(tmp_path / "m", family=family)
    ids, there = copy.plain(["the cat"])
    usual = torch.arange(ids.shape[1])[None]
    torch.testing.assert_close(copy(ids, there, usual), copy(ids, there))
    assert (copy(ids, there, 2 * usual) - copy(ids, there)).abs().max() > 1e-3


def test_lower_layers_can_be_frozen(tmp_path) -> None:
    copy = backbone(tmp_path / "m", new_tokens=1)
    copy.freeze(1)
    learning = {name.split(".")[0] for name, value in copy.named_parameters() if value.requires_grad}
    assert learning == {"network", "new_tokens"}
    assert not any(value.requires_grad for value in copy.layers[0].parameters())
    assert all(value.requires_grad for value in copy.layers[1].parameters())
    assert not copy.network.get_input_embeddings().weight.requires_grad
    with pytest.raises(ConfigError, match="trained_layers must be between 0 and 2, got 3"):
        copy.freeze(3)


def test_half_precision_does_not_round_what_is_trained(tmp_path) -> None:
    exact = backbone(tmp_path / "m")
    rounded = load_encoder(tmp_path / "m", dtype="bfloat16", device="cpu")
    torch.testing.assert_close(Backbone.of(rounded).state_dict(), exact.state_dict())
    assert Backbone.of(rounded, pretrained=False).state_dict().keys() == exact.state_dict().keys()


def test_what_cannot_be_trained_says_so(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"'fake:8:3' is no such model.*bert, roberta"):
        Backbone.of(FakeEncoder(8))
    with pytest.raises(ConfigError, match="pools by 'max'"):
        backbone(tmp_path / "m", pooling="max")


def test_tokens_are_cut(tmp_path) -> None:
    copy = backbone(tmp_path / "m")
    assert [len(row) for row in copy.tokenise([TEXTS[3], "dog"])] == [62, 1]
    assert copy.tokenise([TEXTS[3]], limit=4) == [copy.tokenise([TEXTS[3]])[0][:4]]
    assert copy.tokenise([]) == []


def test_a_transformer_learns_the_same_in_half_precision(tmp_path, monkeypatch) -> None:
    seen, fused = [], torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda query, *args, **options: seen.append(query.dtype) or fused(query, *args, **options),
    )
    copy = backbone(tmp_path / "m")
    ids, there = copy.plain(["the cat sat on the mat", "dog"])
    gradients = []
    for half in (False, True, False):  # in half precision by plain attention, else by the fused one
        copy.zero_grad()
        seen.clear()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            vectors = copy.pool(copy(ids, there), there).float()
        assert set(seen) == (set() if half else {torch.float32})
        (vectors[0] @ vectors[1]).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in copy.parameters() if p.grad is not None]))
    assert torch.cosine_similarity(*gradients[:2], dim=0) > 0.99
    torch.testing.assert_close(gradients[0], gradients[2])
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        copy(ids, there)
    assert set(seen) == {torch.float32, torch.bfloat16}, "what does not learn stays fused"


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "electra"])
def test_dropout_spares_attention_weights(family: str, tmp_path) -> None:
    copy = backbone(tmp_path / "m", family=family)
    set_dropout(copy.network, 0.25)
    shares = {name: part.p for name, part in copy.network.named_modules() if isinstance(part, nn.Dropout)}
    weights = [name for name in shares if name.endswith(("attention.self.dropout", "attention.dropout"))]
    assert len(weights) == len(copy.layers)
    assert all(p == (0.0 if name in weights else 0.25) for name, p in shares.items())
