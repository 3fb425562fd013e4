"""The space that the splits live in: the encoder's embeddings after one linear map, learned from the pairs first.

A tree's thousand hyperplanes have far more to learn than the few hundred directions of the space under them. So the
space comes first: W starts as the identity and learns by the same symmetric InfoNCE, on cosines of Wx / |Wx|; then
the tree begins from the principal directions of the adapted corpus. The rate is chosen on held-out queries, and so
is how far to go; a map that helps none of them stays the identity. Takes seconds on a CPU.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm.auto import tqdm

from palmette.losses import info_nce
from palmette.pairs import EncodedPairs

__all__ = ["Adapter", "learn_adapter"]

RATES = (1e-4, 1e-3)
STEPS, EVERY, WARMUP = 500, 100, 25
BATCH = 512
"""Many wrong answers at once: 128 cost .015 and more of the adapted cosine's nDCG@10 where there are many labels."""
EPOCHS = 300
"""Passes over few pairs at most."""
FIRST_MULTIPLIER = 20.0


class Adapter(nn.Module):
    """x → Wx / |Wx|, fixed once learned."""

    weight: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.eye(width))  # [d, d]

    def forward(self, x: Tensor) -> Tensor:
        """[B, d] → [B, d], rows of length 1."""
        return _adapted(x, self.weight)


def _adapted(x: Tensor, weight: Tensor) -> Tensor:
    return F.normalize(F.linear(x, weight), dim=1)


def learn_adapter(adapter: Adapter, pairs: EncodedPairs, seed: int, progress: bool | None) -> None:
    """Set ``adapter`` to the map that serves the held-out queries best; without any it stays as it is."""
    if pairs.dev is None or len(pairs) < 2:
        return
    best = _quality(pairs, adapter.weight)
    steps = min(STEPS, EPOCHS * math.ceil(len(pairs) / BATCH))
    hidden = None if progress is None else not progress
    with tqdm(total=len(RATES) * steps, desc="Adapting the space", unit="step", disable=hidden) as bar:
        for rate in RATES:
            weight = nn.Parameter(torch.eye(len(adapter.weight)))
            multiplier = nn.Parameter(torch.tensor(math.log(FIRST_MULTIPLIER)))
            optimizer = torch.optim.AdamW([weight, multiplier], lr=rate, weight_decay=0.0)
            generator = torch.Generator().manual_seed(seed)
            for step in range(1, steps + 1):
                for group in optimizer.param_groups:
                    group["lr"] = (
                        rate * min(1, step / WARMUP) * 0.5 * (1 + math.cos(math.pi * (step - 1) / steps))
                    )
                queries, documents, known = pairs.batch(
                    pairs.sample(BATCH, generator)
                )  # [B, d], [B, d], [B, B]
                cosine = _adapted(queries, weight) @ _adapted(documents, weight).T
                loss = info_nce(cosine * multiplier.exp(), known)
                optimizer.zero_grad(set_to_none=True)
                torch.autograd.backward(loss)
                optimizer.step()
                bar.update(1)
                if step % EVERY == 0 and (score := _quality(pairs, weight)) > best:
                    best = score
                    adapter.weight.copy_(weight.detach())


@torch.no_grad()
def _quality(pairs: EncodedPairs, weight: Tensor) -> float:
    scores = pairs.validate(lambda x: _adapted(x, weight), lambda q, d: q @ d.T)
    return scores["ndcg@10"]
