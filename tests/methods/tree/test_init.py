"""Start of training: principal directions, the space and its pairs, the coarse levels; and shrinkage afterwards."""

from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import pytest
import torch

from palmette import FakeEncoder, RetrievalData, TreeModel
from palmette.data import load_data, with_synthetic_queries
from palmette.encoder import States
from palmette.hub.card import render_card
from palmette.maths import BLOCK, ntvd, symmetric_info_nce
from palmette.methods.tree import TreeConfig, init, training
from palmette.methods.tree.init import (
    ENOUGH,
    choose_pairs,
    fit_adapter,
    initialise,
    start_task,
    train_coarse_levels,
)
from palmette.methods.tree.module import Adapter, Tree, fold_leaves
from palmette.methods.tree.training import TreeTask
from palmette.training.config import TrainingConfig
from palmette.training.loop import train
from palmette.training.pairs import TrainingPairs, Validation
from palmette.types import Document

WIDTH = 12


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noisy_pairs(noise: float, count: int = 200) -> TrainingPairs:
    """Pairs that only the first half of each text's coordinates tells apart; the others are noise."""
    generator = seeded()
    signal = torch.randn(count, WIDTH // 2, generator=generator)
    queries, documents = (
        torch.cat([signal, noise * torch.randn(count, WIDTH // 2, generator=generator)], dim=1)
        for _ in range(2)
    )
    data = load_data([(f"question {row}", f"answer {row}") for row in range(count)])
    return TrainingPairs(data, queries, documents, *data.pairs("train"), Validation.of(data, 0))


def unlabelled(pairs: TrainingPairs) -> TrainingPairs:
    return replace(pairs, data=replace(pairs.data, labelled=False))


# -- hyperplanes ----------------------------------------------------------------------------------------------


def test_a_principal_start_keeps_the_encoders_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(init, "GROWTH", 1.1)
    x = torch.randn(300, 16, generator=seeded()) * torch.linspace(2, 0.2, 16)
    x = x / x.norm(dim=1, keepdim=True)
    tree = Tree(TreeConfig(depth=8, width=16)).eval()
    initialise(tree, x, seeded())
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
    x = torch.randn(BLOCK + 9, 5, generator=seeded()) * torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0]) + 7
    _, _, axes = torch.linalg.svd((x - x.mean(0)).double(), full_matrices=False)
    tree = Tree(TreeConfig(depth=4, width=5, space="encoder"))
    initialise(tree, x, seeded())
    found = torch.nn.functional.normalize(tree.linear.directions.detach(), dim=1)
    torch.testing.assert_close((found[:5] * axes.float()).sum(1).abs(), torch.ones(5), atol=1e-4, rtol=0)
    torch.testing.assert_close(found[5:10] @ found[5:10].T, torch.eye(5), atol=1e-5, rtol=0)
    with torch.no_grad():  # the average document goes either way
        torch.testing.assert_close(tree.eval()(States(x.mean(0, keepdim=True))), torch.full((1, 16), 1 / 16))


def test_the_splits_below_start_from_what_the_trained_ones_leave() -> None:
    x = torch.randn(500, 6, generator=seeded(2)) * torch.arange(6.0, 0.0, -1.0)
    tree = Tree(TreeConfig(depth=3, width=6, space="encoder")).eval()
    own = torch.nn.functional.normalize(torch.randn(3, 6, generator=seeded(1)))
    with torch.no_grad():
        tree.linear.directions[:3], tree.linear.offsets[:3] = own, 0.5
    initialise(tree, x, seeded(), trained=3)
    first, rest = tree.linear.directions.detach().split([3, 4])
    assert torch.equal(first, own)
    assert torch.equal(tree.linear.offsets[:3].detach(), torch.full((3,), 0.5))
    torch.testing.assert_close(rest[:3] @ rest[:3].T, torch.eye(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(rest[:3] @ own.T, torch.zeros(3, 3), atol=1e-5, rtol=0)
    spread = ((x - x.mean(0)) @ rest[:3].T).var(0)
    assert spread[0] > spread[1] > spread[2]


def test_every_levels_multiplier_starts_where_its_loss_is_lowest() -> None:
    pairs = noisy_pairs(1.0)  # far enough that no multiplier separates all pairs
    tree = Tree(TreeConfig(depth=4, width=WIDTH, space="encoder")).eval()
    initialise(tree, pairs.documents, seeded())
    TreeTask(tree, pairs).init_multipliers(seeded())
    queries, documents, known = pairs.batch(pairs.sample(256, seeded()))
    with torch.no_grad():
        for level in range(1, 5):
            similarity = ntvd(tree(States(queries), level), tree(States(documents), level))
            at = float(symmetric_info_nce(similarity * tree.multiplier(level), known))
            for factor in (1 / 30, 1 / 2, 2, 30):
                assert at < float(symmetric_info_nce(similarity * tree.multiplier(level) * factor, known))
    assert len(tree.log_multipliers.unique()) > 1, "levels have their own"


@pytest.mark.parametrize("options", [{}, {"propagation": "learned"}, {"split": "mlp"}], ids=str)
def test_the_coarse_levels_learn_and_the_splits_below_stay(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(init, "COARSE_LEVELS", 3)
    monkeypatch.setattr(init, "COARSE", init.COARSE.replace(steps=100, evaluate_every=50))
    pairs = noisy_pairs(1.0)
    tree = Tree(TreeConfig(depth=5, width=WIDTH, space="encoder", **options)).eval()
    initialise(tree, pairs.documents, seeded())
    start = {name: value.clone() for name, value in tree.state_dict().items()}

    def quality() -> float:
        with torch.no_grad():
            return pairs.validate(lambda x: fold_leaves(tree(States(x)), 3), ntvd)["ndcg@10"]

    assert train_coarse_levels(tree, replace(pairs, dev=None), 0, False) == 0
    assert all(torch.equal(value, start[name]) for name, value in tree.state_dict().items())
    before = quality()
    assert train_coarse_levels(tree, pairs, 0, False) == 7
    assert quality() > before + 0.05
    for name, value in tree.state_dict().items():
        if name in ("linear.directions", "linear.offsets"):
            assert torch.equal(value[7:], start[name][7:])
            assert not torch.equal(value[:7], start[name][:7])
        else:
            assert torch.equal(value, start[name])


# -- the space and its pairs ------------------------------------------------------------------------------------


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Maps of a dozen columns need no more steps, and one rate."""
    monkeypatch.setattr(init, "ADAPTER", init.ADAPTER.replace(steps=150, evaluate_every=30))
    monkeypatch.setattr(init, "ADAPTER_RATES", (3e-3,))
    monkeypatch.setattr(init, "COARSE_LEVELS", 0)


def quality(adapter: Adapter, pairs: TrainingPairs) -> float:
    return pairs.validate(adapter, lambda q, d: q @ d.T)["ndcg@10"]


def misleading(pairs: TrainingPairs) -> TrainingPairs:
    """The same held-out questions; training questions have other answers."""
    rows = np.random.default_rng(0).permutation(pairs.document_rows)
    return replace(pairs, document_rows=rows)


def never() -> NoReturn:
    raise AssertionError("no synthetic queries are needed where pairs teach")


def test_the_space_is_learned_and_kept_as_far_as_it_helps_the_held_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(init, "ADAPTER", init.ADAPTER.replace(steps=500))
    pairs, adapter, half, kept = noisy_pairs(2.0), Adapter(WIDTH), Adapter(WIDTH), Adapter(WIDTH)
    before = quality(adapter, pairs)
    fit_adapter(adapter, pairs, seed=0, progress=False)
    assert quality(adapter, pairs) > before + 0.1
    gain = adapter.weight.abs().sum(0)
    assert gain[:6].min() > gain[6:].max()
    fit_adapter(half, unlabelled(pairs), seed=0, progress=False)
    torch.testing.assert_close(half.weight, (adapter.weight + torch.eye(WIDTH)) / 2)  # synthetic queries
    fit_adapter(kept, replace(pairs, dev=None), seed=0, progress=False)
    assert torch.equal(kept.weight, torch.eye(WIDTH)), "nothing held out: nothing to choose by"


@pytest.mark.usefixtures("short")
def test_pairs_that_teach_are_kept() -> None:
    pairs, adapter = noisy_pairs(1.0, 400), Adapter(WIDTH)
    before = quality(adapter, pairs)
    assert choose_pairs(adapter, pairs, never, 0, False) is pairs
    assert quality(adapter, pairs) > before + 0.1


@pytest.mark.usefixtures("short")
def test_synthetic_queries_teach_where_pairs_do_not() -> None:
    synthetic, adapter, alone = unlabelled(noisy_pairs(1.0, 400)), Adapter(WIDTH), Adapter(WIDTH)
    pairs = misleading(noisy_pairs(1.0, 400))
    before = quality(adapter, pairs)
    assert choose_pairs(adapter, pairs, lambda: synthetic, 0, False) is synthetic
    assert quality(adapter, pairs) > before + 0.05
    fit_adapter(alone, synthetic, 0, False)  # half of the way
    torch.testing.assert_close(adapter.weight, alone.weight, atol=0, rtol=0)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("synthetic", [None, lambda: None, lambda: misleading(noisy_pairs(1.0, 400))])
def test_the_pairs_are_kept_where_synthetic_queries_are_no_better(synthetic: Any) -> None:
    pairs, adapter, alone = misleading(noisy_pairs(1.0, 400)), Adapter(WIDTH), Adapter(WIDTH)
    fit_adapter(alone, pairs, 0, False)
    assert choose_pairs(adapter, pairs, synthetic, 0, False) is pairs
    torch.testing.assert_close(adapter.weight, alone.weight, atol=0, rtol=0)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("held", [ENOUGH - 1, ENOUGH, 0])
def test_a_few_held_out_questions_cannot_tell(held: int) -> None:
    synthetic = noisy_pairs(1.0, 400)
    judged = dict(list(synthetic.data.qrels["dev"].items())[:held])
    data = replace(synthetic.data, qrels={**synthetic.data.qrels, "dev": judged})
    synthetic = replace(synthetic, data=data, dev=Validation.of(data, 0))
    asked: list[TrainingPairs] = []

    def make() -> TrainingPairs:
        asked.append(synthetic)
        return synthetic

    choose_pairs(Adapter(WIDTH), misleading(synthetic), make, 0, False)
    assert bool(asked) == (held >= ENOUGH)


def half_labelled() -> RetrievalData:
    """Texts of common and of own words; held-out questions mix both; training questions are answered at random."""
    draw, common = np.random.default_rng(0), [f"c{word}" for word in range(12)]
    corpus, asked = [], {}
    for row in range(120):
        words = [*draw.choice(common, 8), *(f"w{word}" for word in draw.integers(0, 120, 6))]
        draw.shuffle(words)
        corpus.append(Document(id=str(row), text=" ".join(words) + "."))
        own = [word for word in words if word.startswith("w")]
        asked[f"d{row}"] = " ".join([*draw.choice(own, 3, replace=False), *draw.choice(common, 4)])
    train = {f"t{row}": {str(draw.integers(120)): 1} for row in range(60)}
    dev = {key: {key[1:]: 1} for key in list(asked)[:60]}
    queries = {key: f"nothing {key}" for key in train} | {key: asked[key] for key in dev}
    return RetrievalData("half", corpus, queries, {"train": train, "dev": dev, "test": {"d0": {"0": 1}}})


def test_synthetic_queries_train_and_judged_ones_are_held_out() -> None:
    data = half_labelled()
    made, alone = with_synthetic_queries(data, 3), load_data(data.corpus, dev_fraction=0, seed=3)
    assert sorted(made.queries[key] for key in made.qrels["train"]) == sorted(alone.queries.values())
    assert all(made.qrels[split] == data.qrels[split] for split in ("dev", "test"))
    assert not made.labelled
    assert all(made.queries[key] == text for key, text in data.queries.items())
    taken = replace(data, queries=data.queries | {key: "mine" for key in alone.queries})
    again = with_synthetic_queries(taken, 3)
    assert not set(again.qrels["train"]) & set(taken.queries)
    assert sorted(again.queries[key] for key in again.qrels["train"]) == sorted(alone.queries.values())


@pytest.mark.usefixtures("short")
def test_a_tree_learns_from_labels_or_from_synthetic_queries() -> None:
    data, how = (
        half_labelled(),
        {"encoder": FakeEncoder(64), "depth": 4, "steps": 4, "batch_size": 8, "progress": False},
    )
    for options, synthetic in (({"learn_from": "labels"}, False), ({"space": "encoder"}, False), ({}, True)):
        model = TreeModel.fit(data, **how, **options)
        assert model.record.pairs == (
            len(with_synthetic_queries(data, 0).qrels["train"]) if synthetic else 60
        )
        assert model.record.made == synthetic
        card = render_card(
            method="tree", class_name="TreeModel", config={}, encoder={}, record=model.record.to_dict()
        )
        assert ("made from the documents" in card) == synthetic
    short_texts = [(f"q{row}", f"a{row}") for row in range(10 * ENOUGH)]  # too short to make questions of
    assert not TreeModel.fit(short_texts, **how).record.made


# -- shrinkage ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"split": "mlp"}, {"start": "random"}], ids=str)
@pytest.mark.parametrize("labelled", [True, False])
def test_synthetic_queries_move_a_tree_half_of_the_way(
    labelled: bool, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(init, "COARSE_LEVELS", 0)
    pairs = noisy_pairs(1.0)
    pairs = pairs if labelled else unlabelled(pairs)
    config = TreeConfig(depth=4, width=WIDTH, space="encoder", **options)
    loop = TrainingConfig(steps=30, batch_size=32, learning_rate=0.02)
    reached = {}
    for share in (0.5, 1.0):
        monkeypatch.setattr(training, "SHRINKAGE", share)
        task = start_task(config, pairs.data, lambda _: pairs, 0, False)
        begun = {name: value.clone() for name, value in task.module.state_dict().items()}
        trained = train(task, loop, device="cpu", progress=False)
        reached[share] = task.module.state_dict()
        assert trained.metrics == task.validate(task.module)
    assert any(not torch.equal(value, begun[name]) for name, value in reached[1.0].items()), (
        "nothing was learned"
    )
    halfway = not labelled and config.start == "principal"
    for name, value in reached[0.5].items():
        full = reached[1.0][name]
        torch.testing.assert_close(value, (begun[name] + full) / 2 if halfway else full)
