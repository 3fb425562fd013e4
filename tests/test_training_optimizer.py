"""AdamW with tables of which a batch meets some rows."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from palmette.training.optimizer import AdamW


def step(optimizer: AdamW, table: Tensor, rows: list[int], pull: float) -> None:
    """Towards ``pull``, on the rows given."""
    optimizer.zero_grad()
    found = F.embedding(torch.tensor(rows), table, sparse=True)
    torch.autograd.backward((found - pull).square().sum())
    optimizer.step()


def test_rows_that_are_met_at_every_step_go_the_way_of_adam_without_momentum() -> None:
    start = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    how = {"lr": 0.05, "weight_decay": 0.1}
    sparse, dense = AdamW([ours], **how), torch.optim.AdamW([theirs], betas=(0.0, 0.999), **how)
    for _ in range(20):
        step(sparse, ours, [0, 1, 2, 3], 2.0)
        dense.zero_grad()
        torch.autograd.backward((theirs - 2.0).square().sum())
        dense.step()
    torch.testing.assert_close(ours, theirs)


def test_other_rows_stay_and_what_a_row_knows_fades_while_it_waits() -> None:
    table = nn.Parameter(torch.ones(3, 2))
    optimizer = AdamW([table], lr=0.1, weight_decay=0.0)
    step(optimizer, table, [0, 0, 2], 3.0)  # a row named twice is one row with both gradients
    assert torch.equal(table[1], torch.ones(2))
    torch.testing.assert_close(table[[0, 2]], torch.full((2, 2), 1.1))
    for _ in range(500):
        step(optimizer, table, [2], 3.0)
    before = table[0].clone()
    step(optimizer, table, [0], 3.0)
    gradient, first = 2 * (1.1 - 3), 2 * 2 * (1 - 3)  # now, and at the first step
    second = (0.999**501 * first**2 + gradient**2) * 0.001 / (1 - 0.999**502)
    expected = 0.1 * -gradient / second**0.5
    torch.testing.assert_close(table[0] - before, torch.full((2,), expected), rtol=1e-4, atol=1e-6)


def test_dense_parameters_are_adamw_as_ever() -> None:
    torch.manual_seed(0)
    ours, theirs = nn.Linear(4, 2), nn.Linear(4, 2)
    theirs.load_state_dict(ours.state_dict())
    table = nn.Parameter(torch.zeros(5, 4))
    pair = (AdamW([*ours.parameters(), table], lr=0.01), torch.optim.AdamW(theirs.parameters(), lr=0.01))
    for at in range(5):
        x = torch.randn(3, 4)
        for optimizer, module in zip(pair, (ours, theirs), strict=True):
            optimizer.zero_grad()
            loss = module(x).square().sum()
            if module is ours:
                loss = loss + (F.embedding(torch.tensor([at]), table, sparse=True) - 1).square().sum()
            torch.autograd.backward(loss)
            optimizer.step()
    torch.testing.assert_close(ours.weight, theirs.weight)
    assert bool((table > 0).all())


@pytest.mark.parametrize("rows", [[0, 1], [2]])
def test_its_state_can_be_kept(rows: list[int]) -> None:
    def run(table: nn.Parameter, optimizer: AdamW, steps: range) -> np.ndarray:
        for at in steps:
            step(optimizer, table, [*rows, at % 3], float(at))
        return table.detach().numpy().copy()

    whole = nn.Parameter(torch.ones(3, 2))
    expected = run(whole, AdamW([whole]), range(8))
    first = nn.Parameter(torch.ones(3, 2))
    optimizer = AdamW([first])
    run(first, optimizer, range(4))
    again = nn.Parameter(first.detach().clone())
    other = AdamW([again])
    other.load_state_dict(optimizer.state_dict())
    np.testing.assert_array_equal(run(again, other, range(4, 8)), expected)
