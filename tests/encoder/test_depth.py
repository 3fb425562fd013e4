"""Passes that stop early, and copies of an encoder's last layers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from palmette import FakeEncoder, load_encoder
from palmette.encoder import CachedEncoder, Encoder
from palmette.errors import ConfigError
from support.tiny_encoder import save_tiny_encoder

TEXTS = ["the cat sat on the mat", "a bird", "how do i open the file ?"]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    return load_encoder(str(save_tiny_encoder(tmp_path_factory.mktemp("depth") / "encoder")), dtype="float32")


@pytest.mark.parametrize("kind", ["fake", "real", "cached"])
def test_a_pass_that_stops_gives_the_first_layers(kind: str, real: Encoder, tmp_path: Path) -> None:
    encoder = {"fake": FakeEncoder(16), "real": real, "cached": CachedEncoder(real, tmp_path)}[kind]
    whole = encoder.states(TEXTS, kind="query", outputs=("layers",))
    assert whole.layers is not None
    for depth in range(1, encoder.num_layers + 1):
        part = encoder.states(TEXTS, kind="query", outputs=("layers",), depth=depth)
        assert part.layers is not None
        assert torch.equal(part.layers, whole.layers[:, : depth + 1])
        assert torch.equal(part.mask, whole.mask)
    rows = [
        states.layers
        for _, states in encoder.iter_states(TEXTS[:1], kind="query", outputs=("layers",), depth=1)
    ]
    assert torch.allclose(rows[0], whole.layers[:1, :2, : rows[0].shape[2]], atol=1e-6)
    again = encoder.states(TEXTS, kind="query", outputs=("layers",))
    assert torch.equal(again.layers, whole.layers)  # all layers are back
    assert encoder.states([], outputs=("layers",), depth=1).layers.shape == (0, 2, 0, 16)


def test_layers_not_asked_for_are_not_computed(real: Encoder) -> None:
    ran: list[int] = []
    stack = real.model[0].auto_model.encoder.layer
    hooks = [layer.register_forward_hook(lambda *_, n=n: ran.append(n)) for n, layer in enumerate(stack)]
    real.states(TEXTS, outputs=("layers",), depth=1)
    for hook in hooks:
        hook.remove()
    assert ran == [0]


def test_depth_is_checked(real: Encoder) -> None:
    for depth, outputs in ((0, ("layers",)), (3, ("layers",)), (1, ("pooled",)), (1, ("layers", "pooled"))):
        with pytest.raises(ConfigError, match="depth"):
            real.states(TEXTS, outputs=outputs, depth=depth)


def test_copies_are_the_last_layers(real: Encoder) -> None:
    copies = real.copies(2)
    assert copies is not None
    assert copies.heads == 2
    last = real.model[0].auto_model.encoder.layer[1].state_dict()
    assert torch.equal(copies.layers[1]["query.weight"], last["attention.self.query.weight"])
    assert torch.equal(copies.layers[1]["norms.1.bias"], last["output.LayerNorm.bias"])
    assert len(copies.layers[1]) == len(last)
    assert FakeEncoder(8).copies(1) is None


def test_a_model_is_whole_again_after_an_error(real: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(type(real.model), "forward", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            real.states(TEXTS, outputs=("layers",), depth=1)
    assert real.states(TEXTS, outputs=("layers",)).layers.shape[1] == 3


@pytest.mark.parametrize(
    ("family", "ran"),
    [
        ("bert", [0]),
        ("distilbert", [0]),
        ("mpnet", [0]),
        ("modernbert", [0, 1, 2]),  # other families run all layers: ModernBERT ends in a norm,
        ("albert", None),  # ALBERT has one layer again and again,
        ("xlm", None),  # and XLM a list for each part of a layer
    ],
)
def test_a_pass_that_stops_gives_what_a_whole_one_has_there(
    tmp_path: Path, family: str, ran: list[int] | None
) -> None:
    folder = save_tiny_encoder(tmp_path / "encoder", family=family, layers=3)
    encoder = load_encoder(str(folder), dtype="float32", device="cpu")
    whole = encoder.states(TEXTS, kind="query", outputs=("layers",)).layers
    seen: list[int] = []
    for stack in [part for part in encoder.model.modules() if isinstance(part, torch.nn.ModuleList)]:
        for number, layer in enumerate(stack if len(stack) == 3 else ()):
            layer.register_forward_hook(lambda *_, n=number: seen.append(n))
    for depth in (1, 2, 3):
        part = encoder.states(TEXTS, kind="query", outputs=("layers",), depth=depth).layers
        torch.testing.assert_close(part, whole[:, : depth + 1])
        if depth == 1:
            first = list(seen)
    assert ran is None or first == ran
