"""Where a tree begins: principal directions, a learned space, upper splits ahead, and how far made queries lead."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from palmette.data import load_data
from palmette.encoder import States
from palmette.held_out import HeldOut
from palmette.losses import info_nce, ntvd
from palmette.methods.tree import TreeConfig, TreeTraining, trust
from palmette.methods.tree.adapter import Adapter, learn_adapter
from palmette.methods.tree.module import Tree
from palmette.methods.tree.propagation import coarsen
from palmette.methods.tree.start import PART, begin, started
from palmette.methods.tree.task import TreeTask
from palmette.methods.tree.upper import learn_upper
from palmette.pairs import EncodedPairs


def test_a_principal_start_keeps_the_encoders_neighbours() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 16, generator=generator) * torch.linspace(2, 0.2, 16)
    x = x / x.norm(dim=1, keepdim=True)
    tree = Tree(TreeConfig(depth=8, width=16, growth=1.1)).eval()
    begin(tree, x, generator)
    with torch.no_grad():
        leaves = tree(States(x))
    cosine, overlap = x @ x.T, ntvd(leaves, leaves)
    for similarity in (cosine, overlap):
        similarity.fill_diagonal_(-9)
    shared = [
        len(set(a) & set(b)) / 10
        for a, b in zip(cosine.topk(10).indices.tolist(), overlap.topk(10).indices.tolist(), strict=True)
    ]
    assert sum(shared) / len(shared) > 0.6  # a random start at the same slopes finds about half of that


def test_a_principal_start_has_the_directions_of_the_decomposition_then_orthonormal_ones() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(PART + 9, 5, generator=generator) * torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0]) + 7
    _, _, axes = torch.linalg.svd((x - x.mean(0)).double(), full_matrices=False)
    tree = Tree(TreeConfig(depth=4, width=5, space="encoder"))
    begin(tree, x, generator)
    found = torch.nn.functional.normalize(tree.linear.directions.detach(), dim=1)
    torch.testing.assert_close((found[:5] * axes.float()).sum(1).abs(), torch.ones(5), atol=1e-4, rtol=0)
    torch.testing.assert_close(found[5:10] @ found[5:10].T, torch.eye(5), atol=1e-5, rtol=0)


def test_the_average_document_goes_either_way() -> None:
    x = torch.randn(50, 6, generator=torch.Generator().manual_seed(1)) + 3
    tree = Tree(TreeConfig(depth=4, width=6, space="encoder")).eval()
    begin(tree, x, torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(tree(States(x.mean(0, keepdim=True))), torch.full((1, 16), 1 / 16))


def noisy_pairs(noise: float) -> EncodedPairs:
    """Of every text's coordinates only the first half tells which pair it belongs to; the others are noise."""
    generator = torch.Generator().manual_seed(0)
    rows = np.arange(200, dtype=np.int64)
    signal = torch.randn(200, 6, generator=generator)
    queries, documents = (
        torch.cat([signal, noise * torch.randn(200, 6, generator=generator)], dim=1) for _ in range(2)
    )
    data = load_data([(f"question {row}", f"answer {row}") for row in rows])
    asked, right = data.pairs("train")
    return EncodedPairs(data, queries, documents, asked, right, HeldOut.of(data, 0))


def test_the_space_is_learned_from_pairs_and_kept_where_it_helps_the_held_out() -> None:
    pairs = noisy_pairs(2.0)
    before = pairs.validate(torch.nn.functional.normalize, lambda q, d: q @ d.T)["ndcg@10"]
    adapter = Adapter(12)
    learn_adapter(adapter, pairs, seed=0, progress=False)
    after = pairs.validate(adapter, lambda q, d: q @ d.T)["ndcg@10"]
    assert after > before + 0.1
    gain = adapter.weight.abs().sum(0)
    assert gain[:6].min() > gain[6:].max()
    made = replace(pairs, data=replace(pairs.data, labelled=False))
    half = Adapter(12)
    learn_adapter(half, made, seed=0, progress=False)
    torch.testing.assert_close(half.weight, (adapter.weight + torch.eye(12)) / 2)  # queries made of documents
    kept = Adapter(12)
    learn_adapter(kept, replace(pairs, dev=None), seed=0, progress=False)
    assert torch.equal(kept.weight, torch.eye(12)), "nothing held out: nothing to choose by"


@pytest.mark.parametrize("options", [{}, {"split": "mlp"}, {"start": "random"}], ids=str)
@pytest.mark.parametrize("labelled", [True, False])
def test_what_made_queries_teach_goes_half_of_the_way(
    labelled: bool, options: dict[str, Any], monkeypatch
) -> None:
    pairs = noisy_pairs(1.0)
    pairs = replace(pairs, data=replace(pairs.data, labelled=labelled))
    config = TreeConfig(depth=4, width=12, space="encoder", upper=0, **options)
    training = TreeTraining(steps=30, batch_size=32, learning_rate=0.02)
    reached, metrics = {}, {}
    for share in (0.0, 0.5, 1.0):
        monkeypatch.setattr(trust, "TRUST", share)
        task = started(config, pairs, 0, False)
        begun = {name: value.clone() for name, value in task.module.state_dict().items()}
        metrics[share] = trust.trained(task, training, device="cpu", progress=False).metrics
        reached[share] = task.module.state_dict()
        assert metrics[share] == task.validate(task.module)
    assert any(not torch.equal(value, begun[name]) for name, value in reached[1.0].items()), (
        "nothing was learned"
    )
    for name, value in reached[0.5].items():
        halfway = labelled is False and config.start != "random"
        torch.testing.assert_close(
            value, (begun[name] + reached[1.0][name]) / 2 if halfway else reached[1.0][name]
        )


@pytest.mark.parametrize("options", [{}, {"propagation": "learned"}, {"split": "mlp"}], ids=str)
def test_the_upper_splits_learn_what_tells_apart_and_the_others_stay(options: dict[str, Any]) -> None:
    pairs = noisy_pairs(1.0)
    tree = Tree(TreeConfig(depth=5, width=12, space="encoder", upper=3, **options)).eval()
    begin(tree, pairs.documents, torch.Generator().manual_seed(0))
    start = {name: value.clone() for name, value in tree.state_dict().items()}

    def quality() -> float:
        coarse = lambda x: coarsen(tree(States(x)), tree.config.shape, 3)  # noqa: E731
        with torch.no_grad():
            return pairs.validate(coarse, ntvd)["ndcg@10"]

    assert learn_upper(tree, replace(pairs, dev=None), 0, False) == 0
    assert learn_upper(Tree(tree.config.replace(upper=0)), pairs, 0, False) == 0
    assert all(torch.equal(value, start[name]) for name, value in tree.state_dict().items())
    before = quality()
    assert learn_upper(tree, pairs, 0, False) == 7
    assert quality() > before + 0.05
    for name, value in tree.state_dict().items():
        if name in ("linear.directions", "linear.offsets"):
            assert torch.equal(value[7:], start[name][7:])
            assert not torch.equal(value[:7], start[name][:7])
        else:
            assert torch.equal(value, start[name])


def test_the_splits_below_begin_from_what_the_learned_ones_leave() -> None:
    x = torch.randn(500, 6, generator=torch.Generator().manual_seed(2)) * torch.tensor(
        [6.0, 5.0, 4.0, 3.0, 2.0, 1.0]
    )
    tree = Tree(TreeConfig(depth=3, width=6, space="encoder")).eval()
    own = torch.nn.functional.normalize(torch.randn(3, 6, generator=torch.Generator().manual_seed(1)))
    with torch.no_grad():
        tree.linear.directions[:3], tree.linear.offsets[:3] = own, 0.5
    begin(tree, x, torch.Generator().manual_seed(0), learned=3)
    first, rest = tree.linear.directions.detach().split([3, 4])
    assert torch.equal(first, own)
    assert torch.equal(tree.linear.offsets[:3].detach(), torch.full((3,), 0.5))
    torch.testing.assert_close(rest[:3] @ rest[:3].T, torch.eye(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(rest[:3] @ own.T, torch.zeros(3, 3), atol=1e-5, rtol=0)
    spread = ((x - x.mean(0)) @ rest[:3].T).var(0)
    assert spread[0] > spread[1] > spread[2]


def test_every_levels_multiplier_starts_where_its_loss_is_lowest() -> None:
    pairs = noisy_pairs(1.0)  # far enough that no multiplier separates all pairs
    tree = Tree(TreeConfig(depth=4, width=12, space="encoder")).eval()
    begin(tree, pairs.documents, torch.Generator().manual_seed(0))
    TreeTask(tree, pairs).fit_multipliers(torch.Generator().manual_seed(0))
    rows = pairs.sample(256, torch.Generator().manual_seed(0))
    queries, documents, known = pairs.batch(rows)
    with torch.no_grad():
        for level in range(1, 5):
            similarity = ntvd(tree(States(queries), level), tree(States(documents), level))
            at = float(info_nce(similarity * tree.multiplier(level), known))
            assert all(
                at < float(info_nce(similarity * tree.multiplier(level) * factor, known))
                for factor in (1 / 30, 1 / 2, 2, 30)
            )
    assert len(tree.log_multipliers.unique()) > 1, "levels have their own"
