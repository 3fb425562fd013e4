"""The indexer against the paper's equations, its beam against all leaves, the leaves that searches visit."""

from itertools import product

import numpy as np
import pytest
import torch

from palmette.methods.paths import module as paths_module
from palmette.methods.paths.config import SHARPNESS, PathsConfig, PathsSearch
from palmette.methods.paths.module import Indexer, Paths
from palmette.methods.paths.search import LEAVES, auto_share, leaves_to_visit
from palmette.search.view import ArrayView

SHAPES = pytest.mark.parametrize(("branches", "height"), [(4, 1), (3, 2), (2, 3)])


def indexer(branches: int, height: int, width: int = 6) -> Indexer:
    torch.manual_seed(3)
    made = Indexer(branches, height, width)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return made.requires_grad_(False)


def module(branches: int, height: int, centroid_weight: float = 0.5) -> Paths:
    config = PathsConfig(branches=branches, height=height, centroid_weight=centroid_weight)
    made = Paths(config.replace(width=6))
    made.indexer = indexer(branches, height)
    made.load_state_dict(
        {**made.state_dict(), "adapter": torch.randn(6, 6) * 0.3}
    )  # as earlier versions had it
    made.centres.copy_(texts(5 + branches**height)[5:])
    return made.requires_grad_(False)


def texts(n: int, width: int = 6) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.randn(n, width, generator=torch.Generator().manual_seed(1)))


def children(made: Indexer, x: torch.Tensor, path: tuple[int, ...]) -> torch.Tensor:
    """Equation 1 for one text [m] that has come along a path, written out."""
    ways = [torch.nn.functional.one_hot(torch.tensor(turn), made.branches).float() for turn in reversed(path)]
    k = torch.cat([*ways, x])
    h = len(path)
    k = k + torch.relu(made.inner[h].T @ k)
    return (made.outer[h].T @ k + made.bias[h]).softmax(0)


def leaf_probabilities(made: Indexer, x: torch.Tensor) -> torch.Tensor:
    """Of every leaf, by its number."""
    found = []
    for path in product(range(made.branches), repeat=made.height):
        p = torch.tensor(1.0)
        for h, turn in enumerate(path):
            p = p * children(made, x, path[:h])[turn]
        found.append(p)
    return torch.stack(found)


@SHAPES
def test_a_wide_beam_ranks_all_leaves(branches: int, height: int) -> None:
    made, x = indexer(branches, height), texts(5)
    beam = made.beam(x, branches**height)
    for text, leaves, logs in zip(x, beam.leaves, beam.logs, strict=True):
        every = leaf_probabilities(made, text)
        assert every.sum() == pytest.approx(1, abs=1e-5)
        torch.testing.assert_close(logs.exp(), every.sort(descending=True).values)
        torch.testing.assert_close(every[leaves], logs.exp())
    assert made.beam(x, 2).leaves.shape == (5, 2)
    torch.testing.assert_close(made.beam(x, 1).leaves[:, 0], made.numbers(made(x).path))


def test_leaves_are_numbered_by_their_paths() -> None:
    made = indexer(3, 2)
    paths = list(product(range(3), repeat=2))
    assert made.numbers(torch.tensor(paths)).tolist() == list(range(9))
    assert [tuple(made.path_of(leaf)) for leaf in range(9)] == paths


@SHAPES
def test_the_router_is_the_module_in_double_precision(branches: int, height: int) -> None:
    made, x = module(branches, height), 3 * texts(7)
    state = torch.random.get_rng_state()
    router = made.router()
    assert torch.equal(torch.random.get_rng_state(), state)
    assert {p.dtype for p in [*router.parameters(), *router.buffers()]} == {torch.float64}
    vectors = made.embed(x)
    torch.testing.assert_close(router.embed(x.double()).float(), vectors)
    for beam in (1, 2, branches**height):
        ours, theirs = router.leaves_in_order(vectors.double(), beam), made.leaves_in_order(vectors, beam)
        assert torch.equal(ours.leaves, theirs.leaves)
        torch.testing.assert_close(ours.logs.float(), theirs.logs)


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_leaves_are_visited_by_probability_and_centroid(weight: float) -> None:
    made, vectors = module(9, 1, weight), texts(5)
    every = made.indexer.beam(vectors, 9)
    logs = torch.zeros(5, 9).scatter_(1, every.leaves, every.logs)
    score = logs + weight * SHARPNESS * vectors @ made.centres.T
    found = made.leaves_in_order(vectors, 3)
    assert found.leaves.tolist() == score.topk(3, dim=1).indices.tolist()
    torch.testing.assert_close(found.logs, logs.gather(1, found.leaves))


def test_many_texts_are_routed_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made, vectors = module(3, 2).router(), texts(10).double()
    whole, held, inner = made.leaves_in_order(vectors, 4), [], Indexer.beam
    monkeypatch.setattr(paths_module, "PART", 4)
    monkeypatch.setattr(
        Indexer, "beam", lambda self, x, width: (held.append(len(x)), inner(self, x, width))[1]
    )
    parts = made.leaves_in_order(vectors, 4)
    assert max(held) == 4, "memory does not grow with the queries"
    assert torch.equal(parts.leaves, whole.leaves)


@pytest.mark.parametrize(("branches", "height"), [(27, 1), (3, 3)])
def test_visits_hold_the_budget_and_ignore_other_queries(branches: int, height: int) -> None:
    made = module(branches, height).router()
    sizes = np.random.default_rng(0).integers(0, 9, 27) * (np.arange(27) % 4 > 0)
    view = ArrayView({LEAVES: np.repeat(np.arange(27), sizes)[:, None].astype(np.int32)})
    vectors, count = texts(8).numpy(), int(sizes.sum())
    for options, k in (
        (PathsSearch(visit=0.2), 1),
        (PathsSearch(visit=30), 40),
        (PathsSearch(visit=1), 1),
        (PathsSearch(beam=3), 1),
        (PathsSearch(beam=1), 25),
    ):
        together = leaves_to_visit(made, {}, view, vectors, k, options)
        for row, vector in enumerate(vectors):
            own = together[row][together[row] >= 0]
            alone = leaves_to_visit(made, {}, view, vector[None], k, options)[0]
            assert alone.tolist() == own.tolist(), "neighbours in a batch change nothing"
            held = sizes[own]
            if options.beam is None:
                budget = options.visit * count if isinstance(options.visit, float) else options.visit
                fits = len(own) == 1 or held.sum() <= budget
            else:
                fits = len(own) == options.beam
            assert held.sum() >= k
            assert fits or held[:-1].sum() < k, "no more than the budget holds, or k documents need"
            if height == 1:
                order = made.leaves_in_order(torch.from_numpy(vector[None]).double(), 27).leaves[0]
                assert own.tolist() == order[: len(own)].tolist()


def test_auto_takes_the_least_share_that_loses_little() -> None:
    curve = {0.1: {"recall@100": 0.8}, 0.2: {"recall@100": 0.95}, 1.0: {"recall@100": 0.96}}
    assert auto_share(curve, 0.02, 10**6) == 0.2
    assert auto_share(curve, 0.0, 10**6) == 1.0
    assert auto_share(curve, 0.5, 10**6) == 0.1
    assert auto_share(curve, 0.5, 500) == 1.0
    assert auto_share({}, 0.5, 10**6) < 1
