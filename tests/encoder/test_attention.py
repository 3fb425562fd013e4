"""Attention that learns on a CPU in bfloat16 avoids the fused one; all other attention stays as it was."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from palmette import load_encoder
from palmette.encoder.backbone import Backbone, set_dropout
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
