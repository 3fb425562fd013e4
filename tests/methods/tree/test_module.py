from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palmette.data import load_data
from palmette.encoder import States
from palmette.errors import ConfigError
from palmette.losses import info_nce, ntvd
from palmette.methods.tree import TreeConfig, TreeTraining, trust
from palmette.methods.tree.adapter import Adapter, learn_adapter
from palmette.methods.tree.module import Tree
from palmette.methods.tree.propagation import coarsen, propagate
from palmette.methods.tree.shape import Shape
from palmette.methods.tree.splits import Linear
from palmette.methods.tree.start import PART, begin, started
from palmette.methods.tree.task import TreeTask, levels_of_step
from palmette.methods.tree.upper import learn_upper
from palmette.pairs import EncodedPairs, HeldOut

WIDTH, TOKENS = 6, 5


def random_tree(depth: int, seed: int, **options: Any) -> tuple[Tree, torch.Generator]:
    generator = torch.Generator().manual_seed(seed)
    config = TreeConfig(
        **{
            "depth": depth,
            "width": WIDTH,
            "token_width": TOKENS,
            "start": "random",
            "heads": 2,
            "head_width": 3,
        }
        | options
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        tree = Tree(config).eval()
    begin(tree, torch.randn(20, WIDTH, generator=generator), generator)
    return tree, generator


def texts(count: int, seed: int, longest: int = 7) -> States:
    """Random states of texts of 1 … ``longest`` tokens."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (count,), generator=generator)
    lengths[0] = longest
    return States(
        torch.randn(count, WIDTH, generator=generator),
        tokens=torch.randn(count, longest, TOKENS, generator=generator),
        mask=torch.arange(longest) < lengths[:, None],
    )


def hyperplanes(tree: Tree) -> Linear:
    assert tree.linear is not None
    return tree.linear


SPLITS = [
    {"split": "linear"},
    {"split": "mlp"},
    *(
        {"split": "cross_attention", "aggregation": a}
        for a in ("mean_then_linear", "linear_then_mean", "tree")
    ),
    {"split": "cross_attention", "node_embeddings": 3},
]
KINDS = [
    {**split, "propagation": propagation, "start": start}
    for split in SPLITS
    for propagation in ("product", "learned", "none")
    for start in ("principal", "random")
]


def label(kind: dict[str, Any]) -> str:
    return "-".join(str(value) for value in kind.values())


def reach(scores: torch.Tensor, node: int) -> torch.Tensor:
    """The probability of reaching a node, by walking up from it: T(x)_t as the paper writes it."""
    p = torch.ones(())
    while node > 0:
        parent, left = (node - 1) // 2, node % 2 == 1
        s = torch.sigmoid(scores[parent])
        p = p * (s if left else 1 - s)
        node = parent
    return p


@given(st.integers(1, 6), st.integers(0, 10_000))
@settings(max_examples=25)
def test_propagation_multiplies_along_each_path(depth: int, seed: int) -> None:
    scores = torch.randn(2**depth - 1, generator=torch.Generator().manual_seed(seed)) * 3
    fast = propagate(scores[None], Shape(depth), depth)[0]
    slow = torch.stack([reach(scores, 2**depth - 1 + leaf) for leaf in range(2**depth)])
    torch.testing.assert_close(fast, slow)


@pytest.mark.parametrize("kind", KINDS, ids=label)
@given(st.integers(1, 5), st.integers(0, 10_000), st.floats(0.1, 30))
@settings(max_examples=5)
def test_every_level_is_a_distribution_and_the_sum_of_the_next(
    kind: dict[str, Any], depth: int, seed: int, sharpness: float
) -> None:
    tree, _ = random_tree(depth, seed, sharpness=sharpness, **kind)
    if kind["start"] == "principal":  # a step of training away from the start
        with torch.no_grad():
            for parameter in tree.parameters():
                parameter.add_(
                    0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
                )
    states = texts(5, seed)
    with torch.no_grad():
        levels = [tree(states, h) for h in range(1, depth + 1)]
    for h, level in enumerate(levels, 1):
        assert level.shape == (5, 2**h)
        torch.testing.assert_close(level.sum(1), torch.ones(5))
        torch.testing.assert_close(level, coarsen(levels[-1], tree.config.shape, h), atol=1e-6, rtol=1e-5)


@given(st.integers(2, 7), st.integers(0, 10_000))
@settings(max_examples=25)
def test_coarser_levels_bound_the_overlap_from_above(depth: int, seed: int) -> None:
    tree, _ = random_tree(depth, seed, sharpness=4.0)
    with torch.no_grad():
        x = tree(texts(8, seed + 1))
    overlaps = [1 + ntvd(c, c) for h in range(depth + 1) for c in [coarsen(x, Shape(depth), h)]]
    for coarse, fine in zip(overlaps, overlaps[1:], strict=False):
        assert (coarse >= fine - 1e-5).all()


@pytest.mark.parametrize("kind", [k for k in KINDS if k["start"] == "principal"], ids=label)
def test_every_split_function_starts_from_the_encoders_geometry(kind: dict[str, Any]) -> None:
    plain, _ = random_tree(
        4, 0, start="principal", propagation="none" if kind["propagation"] == "none" else "product"
    )
    tree, _ = random_tree(4, 0, **kind)
    with torch.no_grad():
        torch.testing.assert_close(tree(texts(6, 1)), plain(texts(6, 1)))


@pytest.mark.parametrize("kind", KINDS, ids=label)
def test_all_that_a_tree_has_learns(kind: dict[str, Any]) -> None:
    tree, generator = random_tree(3, 1, **kind)
    if kind["start"] == "principal":  # at the start itself what leads to a zero readout has no gradient
        with torch.no_grad():
            for parameter in tree.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    loss = info_nce(ntvd(tree(texts(8, 1)), tree(texts(8, 2))) * tree.multiplier(3))
    loss = loss + tree.log_multipliers[:2].sum()  # the levels above have their own
    loss.backward()
    for name, parameter in tree.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("split", ["mlp", "cross_attention"])
def test_a_split_of_its_own_has_no_hyperplanes_in_the_papers_start(split: str) -> None:
    assert random_tree(3, 0, split=split, start="random")[0].linear is None
    assert random_tree(3, 0, split=split, start="principal")[0].linear is not None


def test_attention_sees_neither_padding_nor_how_it_was_cut_into_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tree, _ = random_tree(4, 0, split="cross_attention", node_embeddings=2)
    short = texts(4, 3, longest=6)
    assert short.tokens is not None
    assert short.mask is not None
    padded = States(
        short.pooled,
        tokens=torch.cat([short.tokens, torch.full((4, 3, TOKENS), 9.0)], dim=1),
        mask=torch.cat([short.mask, torch.zeros(4, 3, dtype=torch.bool)], dim=1),
    )
    whole = tree(short)
    torch.testing.assert_close(tree(padded), whole)
    gradient = torch.autograd.grad(whole.square().sum(), list(tree.parameters())[1:])
    monkeypatch.setattr(
        "palmette.methods.tree.splits.PART", 1
    )  # a node at a time, recomputed on the way back
    parts = tree(short)
    torch.testing.assert_close(parts, whole)
    again = torch.autograd.grad(parts.square().sum(), list(tree.parameters())[1:])
    for one, other in zip(gradient, again, strict=True):
        torch.testing.assert_close(one, other)


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
    found = torch.nn.functional.normalize(hyperplanes(tree).directions.detach(), dim=1)
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


@pytest.mark.parametrize("options", [{}, {"split": "mlp"}, {"start": "random"}], ids=label)
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
        task = TreeTask(started(config, pairs, 0, False), pairs)
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


@pytest.mark.parametrize("options", [{}, {"propagation": "learned"}, {"split": "mlp"}], ids=label)
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
    x = texts(500, 1).pooled * torch.tensor([6.0, 5.0, 4.0, 3.0, 2.0, 1.0])
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


def test_a_shallow_level_computes_only_the_splits_it_needs() -> None:
    tree, _ = random_tree(6, 0)
    with torch.no_grad():
        before = tree(texts(4, 0), 3)
        hyperplanes(tree).directions[7:] = torch.nan
        assert torch.equal(tree(texts(4, 0), 3), before)
        assert tree(texts(4, 0), 4).isnan().any()


@pytest.mark.parametrize(("schedule", "power"), [("stochastic", 2), ("stochastic_linear", 1), ("uniform", 0)])
def test_a_level_is_drawn_as_often_as_the_schedule_says(schedule: str, power: int) -> None:
    config, generator = TreeConfig(depth=4, schedule=schedule), torch.Generator().manual_seed(0)
    draws = torch.tensor([level for _ in range(6000) for level in levels_of_step(config, generator, 0.5)])
    share = torch.bincount(draws, minlength=5)[1:] / 6000
    expected = torch.arange(1.0, 5) ** power
    torch.testing.assert_close(share, expected / expected.sum(), atol=0.025, rtol=0)


@pytest.mark.parametrize(
    ("schedule", "levels"),
    [
        ("constant", [[6]] * 6),
        ("matryoshka", [[1, 2, 3, 4, 5, 6]] * 6),
        ("linear", [[1], [2], [3], [4], [5], [6]]),
        ("exponential", [[1], [1], [2], [4], [4], [6]]),  # 1, 2, 4, 6: a quarter of the run each
    ],
)
def test_a_schedule_goes_through_its_levels(schedule: str, levels: list[list[int]]) -> None:
    config = TreeConfig(depth=6, schedule=schedule)
    assert [levels_of_step(config, torch.Generator(), step / 6 + 1e-9) for step in range(6)] == levels


def test_dropout_acts_in_training_only() -> None:
    tree, _ = random_tree(4, 0, dropout=0.5)
    x = texts(3, 0)
    with torch.no_grad():
        assert torch.equal(tree.eval()(x), tree(x))
        assert not torch.equal(tree.train()(x), tree(x))


@pytest.mark.parametrize(
    "options",
    [
        {"depth": 0},
        {"depth": 15},
        {"dropout": 1.0},
        {"sharpness": 0.0},
        {"growth": -1.0},
        {"schedule": "weekly"},
        {"split": "axe"},
        {"distill": 1.5},
        {"temperature": 0.0},
        {"propagation": "learned", "closed": (1,)},
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        TreeConfig(**options)
