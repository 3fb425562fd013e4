"""The indexer against the paper's equations, its beam against all leaves, its start against k-means."""

from itertools import product

import numpy as np
import pytest
import torch

from palmette.data import load_data
from palmette.held_out import HeldOut
from palmette.methods.paths import routing
from palmette.methods.paths.capacity import crowding
from palmette.methods.paths.config import PathsConfig
from palmette.methods.paths.inputs import Embedded
from palmette.methods.paths.module import Indexer, Paths
from palmette.methods.paths.routing import Router
from palmette.methods.paths.start import assigned, begin, kmeans
from palmette.methods.paths.task import PathsTask
from palmette.pairs import EncodedPairs


def indexer(branches: int, height: int, width: int = 6) -> Indexer:
    torch.manual_seed(3)
    made = Indexer(branches, height, width)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return made.requires_grad_(False)


def module(branches: int, height: int) -> Paths:
    made = Paths(PathsConfig(branches=branches, height=height, nearness=0.5).replace(width=6))
    made.indexer = indexer(branches, height)
    torch.nn.init.normal_(made.adapter, std=0.3)
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


@pytest.mark.parametrize(("branches", "height"), [(4, 1), (3, 2), (2, 3)])
def test_a_path_embedding_follows_the_likeliest_child(branches: int, height: int) -> None:
    made, x = indexer(branches, height), texts(5)
    routed = made(x)
    assert routed.embedding.shape == (5, branches * height)
    for text, embedding, path in zip(x, routed.embedding, routed.path.tolist(), strict=True):
        reached, parts, way = torch.tensor(1.0), [], ()
        for _ in range(height):
            p = children(made, text, way) * reached
            parts.append(p)
            way, reached = (*way, int(p.argmax())), p.max()
        assert tuple(path) == way
        torch.testing.assert_close(embedding, torch.cat(parts))


@pytest.mark.parametrize(("branches", "height"), [(4, 1), (3, 2), (2, 3)])
def test_a_wide_beam_ranks_all_leaves(branches: int, height: int) -> None:
    made, x = indexer(branches, height), texts(5)
    beam = made.beam(x, branches**height)
    for text, leaves, chances in zip(x, beam.leaves, beam.probabilities, strict=True):
        every = leaf_probabilities(made, text)
        assert every.sum() == pytest.approx(1, abs=1e-5)
        torch.testing.assert_close(chances, every.sort(descending=True).values)
        torch.testing.assert_close(every[leaves], chances)
    narrow = made.beam(x, 2)
    assert narrow.leaves.shape == (5, 2)
    torch.testing.assert_close(made.beam(x, 1).leaves[:, 0], made.numbers(made(x).path))


def test_leaves_are_numbered_by_their_paths() -> None:
    made = indexer(3, 2)
    paths = torch.tensor(list(product(range(3), repeat=2)))
    assert made.numbers(paths).tolist() == list(range(9))
    router = Router(module(3, 2))
    assert [router.path_of(leaf) for leaf in range(9)] == [tuple(path) for path in paths.tolist()]


@pytest.mark.parametrize(("branches", "height"), [(9, 1), (4, 2), (2, 4)])
def test_plain_arrays_route_alike(branches: int, height: int) -> None:
    made, x = module(branches, height), 3 * texts(7)
    router = Router(made)
    vectors = made.embed(x)
    np.testing.assert_allclose(router.embed(x.numpy()), vectors.numpy(), atol=1e-6)
    for beam in (1, 2, 5, branches**height):
        ours, theirs = router.beam(vectors.numpy(), beam), made.indexer.beam(vectors, beam)
        np.testing.assert_allclose(ours.probabilities, theirs.probabilities.numpy(), atol=1e-6)
        assert ours.leaves.tolist() == theirs.leaves.tolist()
        if height == 1:
            assert router.ordered(vectors.numpy(), beam).leaves.tolist() == ours.leaves.tolist(), (
                "no centres yet"
            )


def test_leaves_are_visited_by_probability_and_nearness() -> None:
    made, x = module(9, 1), texts(5)
    made.centres.copy_(texts(14)[5:])
    router = Router(made)
    vectors = router.embed(x.numpy())
    every = made.indexer.beam(torch.from_numpy(vectors), 9)
    logs = torch.zeros(5, 9).scatter_(1, every.leaves, every.probabilities.log())
    score = logs + 0.5 * 40 * torch.from_numpy(vectors) @ made.centres.T
    found = router.ordered(vectors, 3)
    assert found.leaves.tolist() == score.topk(3, dim=1).indices.tolist()
    torch.testing.assert_close(
        torch.from_numpy(found.probabilities).log(), logs.gather(1, score.topk(3).indices)
    )


@pytest.mark.parametrize("nearness", [0.0, 0.5])
def test_one_query_visits_what_many_do(nearness: float) -> None:
    made = module(9, 1)
    made.config = made.config.replace(nearness=nearness)
    made.centres.copy_(texts(14)[5:])
    router, sizes = Router(made), np.array([3, 0, 5, 1, 9, 2, 0, 4, 6])
    vectors = router.embed(texts(5).numpy())
    order = router.ordered(vectors, 9).leaves
    held = np.cumsum(sizes[order], axis=1)
    for row, vector in enumerate(vectors):

        def visits(budget: float, needed: int, beam: int, vector: np.ndarray = vector) -> list[int]:
            return router.visits(vector, sizes, budget, needed, beam).tolist()

        for beam in (1, 4, 9):
            assert visits(0, 1, beam) == order[row, : max(beam, np.sum(held[row] < 1) + 1)].tolist()
        for budget in (0.0, 7.5, 20.0, 30.0):
            within = max(1, np.sum(held[row] <= budget))
            assert visits(budget, 0, 0) == order[row, :within].tolist()
            assert visits(budget, 12, 0) == order[row, : max(within, np.sum(held[row] < 12) + 1)].tolist()
        assert visits(0, 30, 0) == order[row, : np.sum(held[row] < 30) + 1].tolist()


def test_many_texts_are_routed_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    router, vectors = Router(module(3, 2)), texts(10).numpy()
    whole, held, inner = router.ordered(vectors, 4), [], Router._children
    monkeypatch.setattr(routing, "PART", 4)
    monkeypatch.setattr(
        Router, "_children", lambda self, x, path: (held.append(len(x)), inner(self, x, path))[1]
    )
    parts = router.ordered(vectors, 4)
    assert max(held) == 4, "memory does not grow with the questions"
    assert parts.leaves.tolist() == whole.leaves.tolist()
    np.testing.assert_allclose(parts.probabilities, whole.probabilities, atol=1e-6)


def test_kmeans_finds_clusters_and_leaves_no_centre_empty() -> None:
    generator = torch.Generator().manual_seed(0)
    spots = torch.tensor([[3.0, 0], [0, 3], [-3, 0], [0, -3]])
    x = spots.repeat(50, 1) + 0.1 * torch.randn(200, 2, generator=generator)
    centres, prices = kmeans(x, 4, generator)
    assert torch.cdist(spots, centres).min(dim=1).values.max() < 0.2
    assert torch.bincount(assigned(x, centres), minlength=4).tolist() == [50] * 4
    assert not prices.any()
    twins, _ = kmeans(torch.ones(10, 2), 3, generator)
    assert torch.equal(twins, torch.ones(3, 2))


def test_prices_even_clusters_out() -> None:
    generator = torch.Generator().manual_seed(0)
    spots = torch.randn(30, 8, generator=generator)
    x = spots[torch.randint(30, (3000,), generator=generator) ** 2 // 30]  # some spots are much fuller
    x = x + 0.5 * torch.randn(3000, 8, generator=generator)
    crowded = []
    for limit in (0.0, 1.05):
        centres, prices = kmeans(x, 12, torch.Generator().manual_seed(1), limit=limit)
        crowded.append(crowding(torch.bincount(assigned(x, centres, prices), minlength=12)))
    assert crowded[1] <= 1.05 < 1.1 < crowded[0]


@pytest.mark.parametrize("height", [1, 2, 3])
def test_the_start_is_a_kmeans_of_what_is_left(height: int) -> None:
    """At every height the children are ranked as the distances of the residual to that height's centres."""
    x, made = texts(300), Indexer(4, height, 6).requires_grad_(False)
    for u in made.inner:
        u.zero_()  # alone: U begins small, not at nothing
    begin(made, x, 20.0, torch.Generator().manual_seed(5))
    path, left = made(x).path, x
    for h in range(height):
        centres = made.outer[h][4 * h :].T / 20.0  # [B, m]
        assert torch.equal(path[:, h], torch.cdist(left, centres).argmin(1))
        left = left - centres[path[:, h]]


def test_the_loss_is_told_in_every_digit_while_a_transformer_learns_in_half_precision() -> None:
    data = load_data([(f"question {row}", f"answer {row}") for row in range(8)])
    asked, right = data.pairs("train")
    made = Paths(PathsConfig(branches=3, height=2, balance=0.5, intra_leaf=1.0).replace(width=6))
    pairs = EncodedPairs(data, texts(8), texts(16)[8:], asked, right, HeldOut.of(data, 0))
    task = PathsTask(made, pairs, Embedded(pairs), None)
    read = made(texts(7), texts(15)[8:])  # what a transformer would have come to
    losses = []
    for half in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            losses.append(task.loss(lambda *_: read, np.arange(7), torch.Generator().manual_seed(0), 0.0))
    assert losses[0] > 0
    assert losses[0].dtype == losses[1].dtype == torch.float32
    assert torch.equal(*losses)
