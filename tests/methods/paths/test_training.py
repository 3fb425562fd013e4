"""The k-means start, and losses beside half precision."""

import numpy as np
import pytest
import torch

from palmette.data import load_data
from palmette.methods.paths.config import SHARPNESS, PathsConfig
from palmette.methods.paths.init import initialise, kmeans
from palmette.methods.paths.module import Indexer, Paths
from palmette.methods.paths.training import PathsTask
from palmette.training.pairs import TrainingPairs, Validation


def texts(n: int, width: int = 6) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.randn(n, width, generator=torch.Generator().manual_seed(1)))


def test_kmeans_finds_clusters() -> None:
    generator = torch.Generator().manual_seed(0)
    spots = torch.tensor([[3.0, 0], [0, 3], [-3, 0], [0, -3]])
    x = spots.repeat(50, 1) + 0.1 * torch.randn(200, 2, generator=generator)
    centres = kmeans(x, 4, 1)
    assert torch.cdist(spots, centres).min(dim=1).values.max() < 0.2
    assert torch.cdist(x, centres).argmin(1).bincount(minlength=4).tolist() == [50] * 4
    assert torch.equal(kmeans(x, 4, 1), centres)
    assert torch.equal(kmeans(torch.ones(2, 2), 3, 0), torch.ones(3, 2)), "fewer points than centres"


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
