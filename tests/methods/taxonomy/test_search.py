import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palmette.methods.taxonomy.search import RelevanceCutoff, fit_cut


@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 12))
@settings(max_examples=20)
def test_a_higher_score_is_never_less_probable(seed: int, count: int, deep: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    nodes, asked = torch.randn(count, 3, generator=generator) * 4, torch.randn(2, 3, generator=generator)
    scores = torch.randn(2, 9, generator=generator).mul(12).sort(descending=True).values
    cut = RelevanceCutoff(nodes, torch.tensor([0.7, 0.1, -1.0, float(deep)]))
    chances = cut.probability(asked.numpy(), scores.numpy())
    assert ((chances >= 0) & (chances <= 1)).all()
    assert (np.diff(chances, axis=1) <= 1e-6).all()


def test_fitted_probabilities_are_those_that_were_drawn() -> None:
    generator = torch.Generator().manual_seed(0)
    gaps, scores = (torch.randn(400, 20, generator=generator) * 3 for _ in range(2))
    true = torch.sigmoid(0.8 * gaps + 0.3 * scores - 1)
    relevant = torch.rand(true.shape, generator=generator) < true
    torch.testing.assert_close(fit_cut(gaps, scores, relevant), torch.tensor([0.8, 0.3, -1.0]), atol=0.1, rtol=0)
