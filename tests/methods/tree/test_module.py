from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palmette.encoder import States
from palmette.errors import ConfigError
from palmette.losses import info_nce, ntvd
from palmette.methods.tree import TreeConfig
from palmette.methods.tree.module import ATTENDING, Tree
from palmette.methods.tree.propagation import coarsen, propagate
from palmette.methods.tree.shape import Shape
from palmette.methods.tree.start import begin
from palmette.methods.tree.task import levels_of_step
from palmette.training import TrainingConfig
from palmette.training.loop import _groups

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


@pytest.mark.parametrize(
    ("options", "slow"),
    [
        ({"split": "cross_attention", "start": "principal"}, {"beyond", "refine"}),
        ({"split": "cross_attention", "start": "random"}, set()),
        ({"split": "mlp", "start": "principal"}, set()),
    ],
)
def test_attention_beside_hyperplanes_learns_at_a_slower_pace_than_they_do(
    options: dict[str, Any], slow: set[str]
) -> None:
    """Measured: at full pace its first steps lose what the start had (tests/benchmarks/results/quality.md)."""
    tree, _ = random_tree(3, 0, **options)
    parts = {id(parameter): name.partition(".")[0] for name, parameter in tree.named_parameters()}
    paces: dict[str, set[float]] = {}
    for group in _groups(tree, TrainingConfig()):
        for parameter in group["params"]:
            paces.setdefault(parts[id(parameter)], set()).add(group["pace"])
    assert paces == {part: {ATTENDING if part in slow else 1.0} for part in parts.values()}


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


def test_a_shallow_level_computes_only_the_splits_it_needs() -> None:
    tree, _ = random_tree(6, 0)
    with torch.no_grad():
        before = tree(texts(4, 0), 3)
        tree.linear.directions[7:] = torch.nan
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


def test_the_upper_limit_is_named() -> None:
    for name in ("sharpness", "growth", "temperature"):
        with pytest.raises(ConfigError, match=f"{name} must be above 0 and below 1e6, got inf"):
            TreeConfig(**{name: float("inf")})
