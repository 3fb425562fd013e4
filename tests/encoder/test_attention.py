"""Attention that learns on a CPU in bfloat16 avoids the fused one; all other attention stays as it was."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from palmette import load_encoder
from palmette.encoder import Backbone, attention
from palmette.encoder.attention import learning_attention, set_dropout
from support.tiny_encoder import save_tiny_encoder


class Watch(TorchFunctionMode):
    """Notes what attention is computed in."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.dtype] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is F.scaled_dot_product_attention:
            self.seen.append(args[0].dtype)
        return func(*args, **(kwargs or {}))


def parts(dtype: torch.dtype, learns: bool = True) -> list[torch.Tensor]:
    made = torch.Generator().manual_seed(0)
    return [torch.randn(2, 3, 5, 4, generator=made).to(dtype).requires_grad_(learns) for _ in range(3)]


@pytest.mark.parametrize("short", [True, False])
def test_what_learns_avoids_the_fused_one(short: bool, monkeypatch) -> None:
    monkeypatch.setattr(attention, "SHORT", 192 if short else 4)
    rough, exact = parts(torch.bfloat16), parts(torch.float32)
    there = torch.ones(2, 1, 5, 5, dtype=torch.bool).tril()
    for mask in (there, torch.zeros(there.shape, dtype=torch.bfloat16).masked_fill(~there, -1e9), None):
        with Watch() as watch, torch.autocast("cpu", dtype=torch.bfloat16), learning_attention():
            found = F.scaled_dot_product_attention(*rough, attn_mask=mask)
        assert watch.seen == ([] if short else [torch.float32])
        assert found.dtype == torch.bfloat16
        wanted = F.scaled_dot_product_attention(*exact, attn_mask=None if mask is None else there)
        torch.testing.assert_close(found.float(), wanted, atol=0.03, rtol=0.03)
        found.float().sum().backward()
    assert all(part.grad is not None and part.grad.dtype == torch.bfloat16 for part in rough)


def test_nothing_else_changes() -> None:
    with Watch() as watch, learning_attention():
        F.scaled_dot_product_attention(*parts(torch.bfloat16, learns=False))
        F.scaled_dot_product_attention(*parts(torch.float64))
    assert watch.seen == [torch.bfloat16, torch.float64]


def test_a_transformer_learns_the_same_in_half_precision(tmp_path) -> None:
    copy = Backbone.of(load_encoder(save_tiny_encoder(tmp_path / "m"), dtype="float32", device="cpu")).eval()
    ids, there = copy.plain(["the cat sat on the mat", "dog"])
    gradients = []
    for half in (False, True):
        copy.zero_grad()
        with Watch() as watch, torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            vectors = copy.pool(copy(ids, there), there).float()
        assert set(watch.seen) == (set() if half else {torch.float32})
        (vectors[0] @ vectors[1]).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in copy.parameters() if p.grad is not None]))
    assert torch.cosine_similarity(*gradients, dim=0) > 0.99


def test_dropout_spares_attention_weights(tmp_path) -> None:
    for family in ("bert", "roberta", "distilbert", "electra"):
        encoder = load_encoder(
            save_tiny_encoder(tmp_path / family, family=family), dtype="float32", device="cpu"
        )
        copy = Backbone.of(encoder)
        set_dropout(copy.network, 0.25)
        shares = {name: part.p for name, part in copy.network.named_modules() if isinstance(part, nn.Dropout)}
        weights = [name for name in shares if name.endswith(("attention.self.dropout", "attention.dropout"))]
        assert len(weights) == len(copy.layers)
        assert all(p == (0.0 if name in weights else 0.25) for name, p in shares.items())
