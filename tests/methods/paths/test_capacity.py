"""Leaves are levelled out by their logits alone."""

import pytest
import torch

from palmette.methods.paths.capacity import crowding, level_out
from palmette.methods.paths.module import Indexer
from palmette.methods.paths.start import begin


@pytest.mark.parametrize(("branches", "height"), [(12, 1), (4, 2), (3, 3)])
def test_full_leaves_give_some_away(branches: int, height: int) -> None:
    generator = torch.Generator().manual_seed(0)
    spots = torch.randn(20, 8, generator=generator)
    x = spots[torch.randint(20, (2000,), generator=generator) ** 2 // 20]  # some spots are much fuller
    x = torch.nn.functional.normalize(x + 0.6 * torch.randn(2000, 8, generator=generator))
    torch.manual_seed(0)
    indexer = Indexer(branches, height, 8).requires_grad_(False)
    begin(indexer, x, 40.0, generator)

    def measured() -> float:
        leaves = indexer.numbers(indexer(x).path)
        return crowding(torch.bincount(leaves, minlength=branches**height))

    before, inner = measured(), indexer.inner[0].clone()
    reached = level_out(indexer, x, 1.1, 40.0)
    assert measured() == pytest.approx(reached, abs=0.005)
    assert reached <= before
    assert torch.equal(indexer.inner[0], inner)
    if height < 3:  # deeper, prices are shared by leaves with the same last turns
        assert reached <= 1.1 < before
    assert level_out(indexer, x, 5.0, 40.0) == pytest.approx(reached, abs=0.01), "what is level enough stays"


def test_crowding_is_one_where_all_are_equal() -> None:
    assert crowding(torch.tensor([7, 7, 7])) == pytest.approx(1)
    assert crowding(torch.tensor([6, 0, 0])) == pytest.approx(3)
