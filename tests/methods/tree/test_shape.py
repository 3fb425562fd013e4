import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from palmette.encoder import States
from palmette.errors import ConfigError
from palmette.methods.tree import TreeConfig
from palmette.methods.tree.module import Tree
from palmette.methods.tree.propagation import coarsen, propagate
from palmette.methods.tree.search import reached, summed
from palmette.methods.tree.shape import Shape, level_of, name_of, node_of
from palmette.methods.tree.start import begin

RAGGED = st.builds(
    lambda depth, picks: Shape(depth, leaves_above(depth, picks)),
    st.integers(2, 6),
    st.lists(st.integers(1, 62)),
)


def leaves_above(depth: int, picks: list[int]) -> list[int]:
    """Of the picked nodes those above the last level with none of the others above them."""
    inside = {pick for pick in picks if level_of(pick) < depth}

    def shaded(node: int) -> bool:
        return node > 0 and ((parent := (node - 1) // 2) in inside or shaded(parent))

    return sorted(node for node in inside if not shaded(node))


def test_names_are_the_way_from_the_root() -> None:
    assert [name_of(node) for node in range(7)] == ["", "L", "R", "LL", "LR", "RL", "RR"]
    assert [node_of(name_of(node)) for node in range(2**8)] == list(range(2**8))
    assert [level_of(node) for node in range(7)] == [0, 1, 1, 2, 2, 2, 2]
    with pytest.raises(ConfigError, match="'LXR'"):
        node_of("LXR")


@given(RAGGED)
def test_levels_partition_the_leaves_left_to_right(shape: Shape) -> None:
    assert len(shape.splits) == shape.leaves - 1
    assert list(shape.splits) == sorted(shape.splits)
    for level in range(shape.depth + 1):
        runs = shape.runs(level)
        counts = [runs] * len(shape.levels[level]) if isinstance(runs, int) else list(runs)
        assert sum(counts) == shape.leaves
        leaves = iter(shape.levels[-1].tolist())
        for node, count in zip(shape.levels[level].tolist(), counts, strict=True):
            under = [next(leaves) for _ in range(count)]
            assert all(name_of(leaf).startswith(name_of(node)) for leaf in under)


@given(RAGGED, st.integers(0, 1000))
def test_a_ragged_tree_is_the_perfect_one_with_subtrees_summed(shape: Shape, seed: int) -> None:
    perfect = Shape(shape.depth)
    scores = 2 * torch.randn(3, len(perfect.splits), generator=torch.Generator().manual_seed(seed))
    open_scores = scores[:, torch.from_numpy(shape.splits)]
    for level in range(1, shape.depth + 1):
        whole = propagate(scores, perfect, level)
        names = [name_of(node) for node in perfect.levels[level].tolist()]
        ours = propagate(open_scores[:, : shape.needed(level)], shape, level)
        for column, node in enumerate(shape.levels[level].tolist()):
            under = [at for at, name in enumerate(names) if name.startswith(name_of(node))]
            torch.testing.assert_close(ours[:, column], whole[:, under].sum(1))
        leaves = propagate(open_scores, shape, shape.depth)
        torch.testing.assert_close(coarsen(leaves, shape, level), ours)
        torch.testing.assert_close(torch.from_numpy(summed(leaves.numpy(), shape.runs(level))), ours)


@given(RAGGED, st.integers(0, 1000))
def test_a_text_falls_by_likelier_turns_or_into_the_likeliest_leaf(shape: Shape, seed: int) -> None:
    scores = 3 * torch.randn(4, len(shape.splits), generator=torch.Generator().manual_seed(seed))
    leaves = propagate(scores, shape, shape.depth).numpy()
    place = {node: at for at, node in enumerate(shape.splits.tolist())}
    column = {node: at for at, node in enumerate(shape.levels[-1].tolist())}
    for row, (greedy, best) in enumerate(reached(leaves, shape).tolist()):
        node = 0
        while node in place:
            node = 2 * node + (1 if scores[row, place[node]] >= 0 else 2)
        assert greedy == column[node]
        assert best == leaves[row].argmax()


def test_ancestors_and_their_turns() -> None:
    where, turns = Shape(2, [2]).ancestors()  # splits: root, L; leaves: LL, LR, R
    assert where.tolist() == [[0, 1], [0, 1], [0, 0]]
    assert turns.tolist() == [[1, 1], [1, -1], [-1, 0]]


@pytest.mark.parametrize("closed", [(0,), (3,), (9,), (1, 3), (2, 1), (1, 1)])
def test_what_cannot_be_closed(closed: tuple[int, ...]) -> None:
    depth = 3 if closed == (1, 3) else 2
    with pytest.raises(ConfigError, match="closed nodes"):
        Shape(depth, closed)


def test_a_ragged_tree_as_a_module() -> None:
    config = TreeConfig(depth=3, width=4, closed=(2, 3))
    tree = Tree(config).eval()
    begin(
        tree, torch.randn(20, 4, generator=torch.Generator().manual_seed(0)), torch.Generator().manual_seed(0)
    )
    with torch.no_grad():
        leaves = tree(States(torch.randn(5, 4)))
    assert [name_of(node) for node in config.shape.levels[-1].tolist()] == ["LL", "LRL", "LRR", "R"]
    assert leaves.shape == (5, 4)
    torch.testing.assert_close(leaves.sum(1), torch.ones(5))
    assert TreeConfig.from_dict(config.to_dict()) == config
