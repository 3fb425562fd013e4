"""The losses where documents answer several queries, and where fields are missing."""

import numpy as np
import pytest
import torch

from palmette.methods.fields.losses import losses
from support.reference import info_nce

TAU = 0.5


def test_other_answers_are_no_negatives_and_a_field_without_a_vector_is_not_asked_to_match() -> None:
    draw = torch.Generator().manual_seed(0)
    q, h = torch.randn(3, 4, generator=draw), torch.randn(5, 2, 4, generator=draw)
    h[2, 0] = 0  # the answer of the second query has nothing in its first field
    target, known = torch.tensor([0, 2, 4]), torch.zeros(3, 5).bool()
    known[0, 3] = known[0, 0] = True
    together, by_field, _ = losses(q, h, h.mean(1), target, known, TAU)
    own, others = target.numpy(), known.numpy()
    expected = info_nce((q @ h.mean(1).T / TAU).double().numpy(), own, others)
    assert float(together) == pytest.approx(expected, abs=1e-5)
    each = [
        info_nce((q[[b]] @ h[:, f].T / TAU).double().numpy(), own[[b]], others[[b]])
        for f in range(2)
        for b in range(3)
        if (f, b) != (0, 1)
    ]
    assert float(by_field) == pytest.approx(np.mean(each), abs=1e-5)
