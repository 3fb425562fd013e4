import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palmette.errors import ConfigError
from palmette.losses import info_nce, ntvd
from palmette.methods.tree import TreeConfig
from palmette.methods.tree.module import Tree, coarsen, propagate
from palmette.methods.tree.start import PART, begin, fit_multiplier
from palmette.methods.tree.task import TreeTask


def random_tree(depth: int, seed: int, width: int = 6, **options: float) -> tuple[Tree, torch.Generator]:
    generator = torch.Generator().manual_seed(seed)
    tree = Tree(TreeConfig(depth=depth, width=width, start="random", **options)).eval()
    begin(tree, torch.randn(20, width, generator=generator), generator)
    return tree, generator


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
    fast = propagate(scores[None], depth)[0]
    slow = torch.stack([reach(scores, 2**depth - 1 + leaf) for leaf in range(2**depth)])
    torch.testing.assert_close(fast, slow)


@given(st.integers(1, 9), st.integers(0, 10_000), st.floats(0.1, 30), st.floats(0.5, 2))
@settings(max_examples=40)
def test_every_level_is_a_distribution_and_the_sum_of_the_next(
    depth: int, seed: int, slope: float, growth: float
) -> None:
    tree, _ = random_tree(depth, seed, slope=slope, growth=growth)
    with torch.no_grad():
        levels = [
            tree(torch.randn(5, 6, generator=torch.Generator().manual_seed(seed)), h)
            for h in range(depth + 1)
        ]
    for h, level in enumerate(levels):
        assert level.shape == (5, 2**h)
        torch.testing.assert_close(level.sum(1), torch.ones(5))
        torch.testing.assert_close(level, coarsen(levels[-1], h), atol=1e-6, rtol=1e-5)


@given(st.integers(2, 7), st.integers(0, 10_000))
@settings(max_examples=25)
def test_coarser_levels_bound_the_overlap_from_above(depth: int, seed: int) -> None:
    tree, _ = random_tree(depth, seed, slope=4.0)
    with torch.no_grad():
        x = tree(torch.randn(8, 6, generator=torch.Generator().manual_seed(seed + 1)))
    overlaps = [1 + ntvd(coarsen(x, h), coarsen(x, h)) for h in range(depth + 1)]
    for coarse, fine in zip(overlaps, overlaps[1:], strict=False):
        assert (coarse >= fine - 1e-5).all()


def test_a_principal_start_keeps_the_encoders_neighbours() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 16, generator=generator) * torch.linspace(2, 0.2, 16)
    x = x / x.norm(dim=1, keepdim=True)
    tree = Tree(TreeConfig(depth=8, width=16, growth=1.1)).eval()
    begin(tree, x, generator)
    with torch.no_grad():
        leaves = tree(x)
    cosine, overlap = x @ x.T, ntvd(leaves, leaves)
    for similarity in (cosine, overlap):
        similarity.fill_diagonal_(-9)
    shared = [
        len(set(a) & set(b)) / 10
        for a, b in zip(cosine.topk(10).indices.tolist(), overlap.topk(10).indices.tolist(), strict=True)
    ]
    assert sum(shared) / len(shared) > 0.6  # a random start at the same slopes finds about half of that


def test_a_principal_start_has_the_directions_of_the_decomposition() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(PART + 9, 5, generator=generator) * torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0]) + 7
    _, _, axes = torch.linalg.svd((x - x.mean(0)).double(), full_matrices=False)
    tree = Tree(TreeConfig(depth=3, width=5))
    begin(tree, x, generator)
    found = torch.nn.functional.normalize(tree.directions.detach()[:5], dim=1)
    torch.testing.assert_close((found * axes.float()).sum(1).abs(), torch.ones(5), atol=1e-4, rtol=0)


def test_the_average_document_goes_either_way() -> None:
    x = torch.randn(50, 6, generator=torch.Generator().manual_seed(1)) + 3
    tree = Tree(TreeConfig(depth=4, width=6)).eval()
    begin(tree, x, torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(tree(x.mean(0, keepdim=True)), torch.full((1, 16), 1 / 16))


def test_the_multiplier_starts_where_the_loss_is_lowest() -> None:
    tree, generator = random_tree(5, 3)
    x = torch.randn(32, 6, generator=generator)
    known = torch.eye(32, dtype=torch.bool)
    noisy = x + 1.5 * torch.randn(
        32, 6, generator=generator
    )  # far enough that no multiplier separates all pairs
    fit_multiplier(tree, x, noisy, known)
    with torch.no_grad():
        similarity = ntvd(tree(x), tree(noisy))
        at = float(info_nce(similarity * tree.multiplier, known))
        assert at < float(info_nce(similarity * tree.multiplier * 30, known))
        assert at < float(info_nce(similarity * tree.multiplier / 30, known))
        assert at < float(info_nce(similarity, known))


def test_a_shallow_level_computes_only_the_splits_it_needs() -> None:
    tree, _ = random_tree(6, 0)
    x = torch.randn(4, 6)
    with torch.no_grad():
        before = tree(x, 3)
        tree.directions[7:] = torch.nan
        assert torch.equal(tree(x, 3), before)
        assert tree(x, 4).isnan().any()


def test_stochastic_depth_is_drawn_as_the_square_and_constant_is_the_leaves() -> None:
    task = TreeTask(Tree(TreeConfig(depth=4, width=3)), pairs=None)
    generator = torch.Generator().manual_seed(0)
    draws = torch.tensor([task.draw(generator) for _ in range(6000)])
    share = torch.bincount(draws, minlength=5)[1:] / 6000
    torch.testing.assert_close(share, torch.tensor([1.0, 4.0, 9.0, 16.0]) / 30, atol=0.02, rtol=0)
    constant = TreeTask(Tree(TreeConfig(depth=4, width=3, schedule="constant")), pairs=None)
    assert {constant.draw(generator) for _ in range(20)} == {4}


def test_dropout_acts_in_training_only() -> None:
    tree, _ = random_tree(4, 0, dropout=0.5)
    x = torch.randn(3, 6)
    with torch.no_grad():
        assert torch.equal(tree.eval()(x), tree(x))
        assert not torch.equal(tree.train()(x), tree(x))


@pytest.mark.parametrize(
    "options",
    [{"depth": 0}, {"depth": 15}, {"dropout": 1.0}, {"slope": 0.0}, {"growth": -1.0}, {"schedule": "weekly"}],
)
def test_options_out_of_range_are_refused(options: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        TreeConfig(**options)
