"""Networks, loss and fused weights against FetchHR's equations in NumPy; every weight differs from the others."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from palmette import FakeEncoder, RetrievalData, load_data
from palmette.encoder import EncodingCache
from palmette.methods.base import FitInputs
from palmette.methods.layers.config import LayersConfig
from palmette.methods.layers.module import LayerNetworks
from palmette.methods.layers.training import LayersTask
from palmette.training.loop import TrainingResult
from support.reference import Doubles, gelu, info_nce, linear, norm, randomise, softmax, unit, weights_of
from support.tiny import pairs

HEADS, STATES, VECTOR, DEPTH = 2, 8, 5, 2
LENGTHS = (7, 4, 2)


def query_by_hand(w: dict[str, Doubles], config: LayersConfig, place: int, x: Doubles) -> Doubles:
    """E_Q of one layer's states [T, h] (equations 2 and 3), before it is scaled."""
    at = f"networks.{place}"
    for depth in range(DEPTH):
        part, heads = f"{at}.layers.{depth}", []
        q, k, v = (linear(x, w, f"{part}.{name}") for name in ("query", "key", "value"))
        for own in np.split(np.arange(STATES), HEADS):
            heads.append(softmax(q[:, own] @ k[:, own].T / math.sqrt(STATES / HEADS)) @ v[:, own])
        a = norm(x + linear(np.concatenate(heads, 1), w, f"{part}.attended"), w, f"{part}.norms.0")
        y = linear(gelu(linear(a, w, f"{part}.inner")), w, f"{part}.outer")
        inside = config.skip == "inside"
        x = norm(y + a, w, f"{part}.norms.1") if inside else norm(y, w, f"{part}.norms.1") + a
    return linear(x[0] if config.pooling == "cls" else np.concatenate([x.mean(0), x[0]]), w, f"{at}.head")


@pytest.mark.parametrize("pooling", ["cls", "both"])
@pytest.mark.parametrize("skip", ["outside", "inside"])
@pytest.mark.parametrize("similarity", ["inner_product", "cosine"])
def test_queries_are_equation_2(skip: Any, pooling: Any, similarity: Any) -> None:
    config = LayersConfig(
        layers=(1, 2, 4), depth=DEPTH, heads=HEADS, start="random", trains="all", skip=skip,
        pooling=pooling, similarity=similarity, states=STATES, vector=VECTOR, last=5,
    )  # fmt: skip
    module = LayerNetworks(config).double().eval()
    draw = randomise(module, 2)
    states = [torch.randn(3, max(LENGTHS), STATES, generator=draw, dtype=torch.float64) for _ in range(3)]
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    w = weights_of(module)
    by_hand = np.array([
        [query_by_hand(w, config, place, x[row, :length].numpy()) for place, x in enumerate(states)]
        for row, length in enumerate(LENGTHS)
    ])  # fmt: skip
    with torch.no_grad():
        found = module(states, mask, None).numpy()
    by_hand = unit(by_hand) if similarity == "cosine" else by_hand
    np.testing.assert_allclose(found, by_hand, atol=1e-5, rtol=1e-5)


def task_of(tmp_path: Path, data: Any, **options: Any) -> LayersTask:
    config, cache = LayersConfig(**options), EncodingCache(tmp_path)
    return LayersTask.of(config, FitInputs(data, FakeEncoder(48), cache))


def with_wrong_answers() -> RetrievalData:
    """Some questions share an answer, some have a wrong one given."""
    wrong = [[f"it is {(n + 5) % 17}"] * (n % 3 == 0) for n in range(26)]
    return load_data([(f"what is {n // 2}", f"it is {n % 17}", wrong[n]) for n in range(26)], dev_fraction=0)


@pytest.mark.parametrize("similarity", ["cosine", "inner_product"])
def test_the_loss_of_a_batch_is_the_papers(tmp_path: Path, similarity: Any) -> None:
    task = task_of(tmp_path, with_wrong_answers(), multiplier=7.0, similarity=similarity)
    rows, made = np.arange(0, task.size(), 3), task.pairs
    hard = made.hard_negatives(rows, torch.Generator().manual_seed(3))
    assert len(hard)
    asked, own = made.query_rows[rows], made.document_rows[rows]
    documents = np.union1d(own, hard)
    assert len(documents) > len(np.unique(own)), "given wrong answers are among them"
    d = made.documents[documents].double().numpy()
    d = unit(d) if similarity == "cosine" else d
    with torch.no_grad():
        q = task.queries(task.module, asked).double().numpy()  # [B, L, d]
    known = made.data.positives_mask(asked, documents)
    places = np.searchsorted(documents, own)
    each = [info_nce(7.0 * q[:, layer] @ d.T, places, known) for layer in range(q.shape[1])]
    assert np.ptp(each) > 1e-3
    loss = task.loss(task.module, rows, torch.Generator().manual_seed(3), 0.0)
    assert float(loss.detach()) == pytest.approx(np.mean(each), abs=1e-5)


def test_a_fused_score_is_the_weighted_mean_of_the_layers() -> None:
    config = LayersConfig(layers=(1, 2, 4), states=STATES, vector=VECTOR, last=4)
    module = LayerNetworks(config)
    assert module.weights().tolist() == pytest.approx([0.25, 0.25, 0.5]), "the last as much as all others"
    module.shares.copy_(torch.tensor([0.5, 0.2, 0.3]))
    draw = np.random.default_rng(0)
    q, d = draw.normal(size=(2, 3, VECTOR)), draw.normal(size=(4, VECTOR))
    for layers, weights in (((1, 2, 4), [0.5, 0.2, 0.3]), ((2, 4), [0.4, 0.6])):
        some = q[:, [config.query_layers.index(layer) for layer in layers]]
        by_hand = sum(weight * some[:, at] @ d.T for at, weight in enumerate(weights))
        fused = module.fused(torch.from_numpy(some), layers).numpy()
        np.testing.assert_allclose(fused @ d.T, by_hand, atol=1e-6)


def test_a_layer_that_finds_nothing_loses_its_weight(tmp_path: Path) -> None:
    task = task_of(tmp_path, load_data(pairs(), dev_fraction=0.5))
    before, head = task.module.weights().tolist(), task.module.networks_of()[0].head
    with torch.no_grad():
        head.bias.copy_(100 * torch.randn(head.bias.shape, generator=torch.Generator().manual_seed(1)))
    task.finish(TrainingResult(1, 1, {}, 0.0, False))
    after = task.module.weights().tolist()
    assert sum(after) == pytest.approx(1)
    assert after[0] < 0.7 * before[0]
    assert after[-1] > before[-1]
