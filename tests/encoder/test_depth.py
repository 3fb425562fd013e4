"""Passes that stop early, and copies of an encoder's last layers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from palmette import FakeEncoder, load_encoder
from palmette.cache import CachedEncoder
from palmette.encoder import Encoder
from palmette.encoder.depth import Stops, stopped
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
    stack = real._model[0].auto_model.encoder.layer
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
    last = real._model[0].auto_model.encoder.layer[1].state_dict()
    assert torch.equal(copies.layers[1]["query.weight"], last["attention.self.query.weight"])
    assert torch.equal(copies.layers[1]["norms.1.bias"], last["output.LayerNorm.bias"])
    assert len(copies.layers[1]) == len(last)
    assert FakeEncoder(8).copies(1) is None


def test_a_model_is_whole_again_after_an_error() -> None:
    model = torch.nn.Module()
    model.stack = torch.nn.ModuleList([torch.nn.Linear(1, 1) for _ in range(3)])
    with pytest.raises(RuntimeError), stopped(model, 3, 1):
        assert len(model.stack) == 1
        raise RuntimeError
    assert len(model.stack) == 3


@pytest.mark.parametrize(
    ("family", "ran"),
    [
        ("bert", [0, 0]),  # ends in what its last layer gives
        ("deberta-v2", [0, 0]),
        ("modernbert", [0, 0, 1, 2, 0]),  # ends in a norm: a whole pass is looked at, once
        ("t5", [0, 0, 1, 2, 0]),
        ("megatron-bert", [0, 0, 1, 2, 0]),
        ("albert", None),  # one layer again and again: none is saved
        ("xlm", None),  # a list for each part of a layer
    ],
)
def test_a_pass_that_stops_gives_what_a_whole_one_has_there(
    tmp_path: Path, family: str, ran: list[int] | None
) -> None:
    encoder = load_encoder(
        str(save_tiny_encoder(tmp_path / "encoder", family=family, layers=3)), dtype="float32"
    )
    whole = encoder.states(TEXTS, kind="query", outputs=("layers",)).layers
    seen: list[int] = []
    stacks = [part for part in encoder._model.modules() if isinstance(part, torch.nn.ModuleList)]
    for stack in stacks:
        for number, layer in enumerate(stack if len(stack) == 3 else ()):
            layer.register_forward_hook(lambda *_, n=number: seen.append(n))
    for depth in (1, 1, 2, 3):
        part = encoder.states(TEXTS, kind="query", outputs=("layers",), depth=depth).layers
        torch.testing.assert_close(part, whole[:, : depth + 1])
        if depth == 1:
            first = list(seen)  # of two passes at last
    assert ran is None or first == ran
    assert encoder.states(TEXTS[:1], outputs=("layers",), depth=1).layers.shape[1] == 2


@torch.inference_mode()
def test_what_no_pass_that_stops_gives_is_taken_from_a_whole_one() -> None:
    """Layers that are told how many there are."""

    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stack = torch.nn.ModuleList([torch.nn.Linear(2, 2, bias=False) for _ in range(3)])

        def forward(self) -> dict[str, list[torch.Tensor]]:
            states = [torch.ones(1, 1, 2)]
            for layer in self.stack:
                states.append(layer(states[-1]) * len(self.stack))
            return {"all_layer_embeddings": states}

    model = Counting()
    stops, whole = Stops(model, 3), model()["all_layer_embeddings"]
    for depth in (1, 2, 1, 2, 3):
        found = stops.run(depth, model)["all_layer_embeddings"]
        assert len(found) == depth + 1
        assert all(torch.equal(one, other) for one, other in zip(found, whole, strict=False))
