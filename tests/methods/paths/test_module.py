"""The leaves that searches visit, the k-means start, and losses beside half precision."""

import numpy as np
import pytest
import torch

from palmette.data import load_data
from palmette.methods.paths import module as paths_module
from palmette.methods.paths.config import SHARPNESS, PathsConfig, PathsSearch
from palmette.methods.paths.init import initialise
from palmette.methods.paths.module import Indexer, Paths
from palmette.methods.paths.search import LEAF, auto_share, leaves_to_visit
from palmette.methods.paths.training import PathsTask
from palmette.store.memory import ArrayView
from palmette.training.pairs import TrainingPairs, Validation


def indexer(branches: int, height: int) -> Indexer:
    torch.manual_seed(3)
    made = Indexer(branches, height, 6)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return made.requires_grad_(False)


def module(branches: int, height: int) -> Paths:
    made = Paths(PathsConfig(branches=branches, height=height, centroid_weight=0.5, width=6))
    made.indexer = indexer(branches, height)
    made.centres.copy_(texts(5 + branches**height)[5:])
    return made.requires_grad_(False)


def texts(n: int) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.randn(n, 6, generator=torch.Generator().manual_seed(1)))


def test_many_texts_are_routed_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made, vectors = module(3, 2).router(), texts(10).double()
    whole, held, inner = made.leaves_in_order(vectors, 4), [], Indexer.beam
    monkeypatch.setattr(paths_module, "TEXTS_AT_ONCE", 4)
    counted = lambda self, x, width: (held.append(len(x)), inner(self, x, width))[1]  # noqa: E731
    monkeypatch.setattr(Indexer, "beam", counted)
    parts = made.leaves_in_order(vectors, 4)
    assert max(held) == 4, "memory does not grow with the queries"
    assert torch.equal(parts.leaves, whole.leaves)


@pytest.mark.parametrize(("branches", "height"), [(27, 1), (3, 3)])
def test_visits_hold_the_budget_and_ignore_other_queries(branches: int, height: int) -> None:
    made = module(branches, height).router()
    sizes = np.random.default_rng(0).integers(0, 9, 27) * (np.arange(27) % 4 > 0)
    view = ArrayView({LEAF: np.repeat(np.arange(27), sizes)[:, None].astype(np.int32)})
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
    curve = {0.1: {"recall@100": 0.8}, 0.2: {"recall@100": 0.955}, 1.0: {"recall@100": 0.96}}
    assert auto_share(curve, 10**6) == 0.2
    assert auto_share({1.0: curve[1.0]}, 10**6) == 1.0
    assert auto_share(curve, 500) == 1.0
    assert auto_share({}, 10**6) < 1


@pytest.mark.parametrize("height", [1, 2, 3])
def test_the_start_is_a_kmeans_of_the_residuals(height: int) -> None:
    """At every height the children are ranked as the distances of the residual to that height's centres."""
    x, made = texts(300), Indexer(4, height, 6).requires_grad_(False)
    for u in made.inner:
        u.zero_()  # alone: U begins small, not at nothing
    initialise(made, x, 5)
    path, left = made(x).path, x
    for h in range(height):
        centres = made.outer[h][4 * h :].T / SHARPNESS  # [B, m]
        assert torch.equal(path[:, h], torch.cdist(left, centres).argmin(1))
        left = left - centres[path[:, h]]


def test_the_loss_needs_every_digit_while_a_transformer_learns_in_half_precision() -> None:
    data = load_data([(f"question {row}", f"answer {row}") for row in range(8)])
    asked, right = data.pairs("train")
    made = Paths(PathsConfig(branches=3, height=2, intra_leaf=1.0).replace(width=6))
    pairs = TrainingPairs(data, texts(8), texts(16)[8:], asked, right, Validation.of(data, 0))
    task = PathsTask(made, pairs, None)
    read = made(texts(7), texts(15)[8:])  # what a transformer would have come to
    losses = []
    for half in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            losses.append(task.loss(lambda *_: read, np.arange(7), torch.Generator().manual_seed(0), 0.0))
    assert losses[0] > 0
    assert losses[0].dtype == losses[1].dtype == torch.float32
    assert torch.equal(*losses)
