"""Leaves of limited size: full ones are made less attractive until none crowds the rest (n texts, B branches)."""

from __future__ import annotations

import torch
from torch import Tensor

from palmette.methods.paths.module import Indexer

__all__ = ["crowding", "level_out"]

ROUNDS, STEP, FADE = 200, 0.25, 0.99
PART = 16_384
ROOM = 1 << 26
"""Logits held at a time: of very many texts an even sample is looked at."""


def crowding(sizes: Tensor) -> float:
    """Expected over ideal documents per leaf, of leaves [L]: Σ pᵢcᵢ / (N / L), which is 1 where all are equal."""
    counts = sizes.double()
    return float(counts.square().sum() * len(counts) / counts.sum().clamp(min=1).square())


@torch.no_grad()
def level_out(indexer: Indexer, x: Tensor, limit: float, sharpness: float) -> float:
    """Lower the logits of full leaves for texts [n, m] until the crowding is at most ``limit``; returns it.

    A leaf's logit is its child's bias and, below the root, what the last turn adds to that: rows of W, one for each
    pair of turns. As in an auction, prices rise by the log of how overfull a leaf is, in ever smaller steps; the best
    state seen stays.
    """
    h, branches = indexer.height - 1, indexer.branches
    x = x[:: max(1, len(x) * branches // ROOM)]
    path = torch.cat(
        [indexer(part).path[:, :h] for part in torch.split(x, PART)]
    )  # which prices do not change
    seen = [
        indexer.transformed(*both) for both in zip(torch.split(x, PART), torch.split(path, PART), strict=True)
    ]
    logits = torch.cat([k @ indexer.outer[h] + indexer.bias[h] for k in seen])  # [n, B]
    # Prices [T, B], by the last turn where there is one, and how much of each turn's a text pays: [n, T]
    paid = torch.cat([k[:, :branches] for k in seen]) if h else torch.ones(len(x), 1, device=x.device)
    prices = torch.zeros(paid.shape[1], branches, device=x.device)
    node = indexer.numbers(torch.cat([path, torch.zeros_like(logits[:, :1], dtype=torch.int64)], 1))
    best, kept, step = float("inf"), prices.clone(), STEP * sharpness / 20
    ideal = len(x) / branches**indexer.height
    for _ in range(ROUNDS):
        leaves = node + (logits - paid @ prices).argmax(1)
        sizes = torch.bincount(leaves, minlength=branches**indexer.height)
        crowded = crowding(sizes)
        if crowded < best:
            best, kept = crowded, prices.clone()
        if crowded <= limit:
            break
        over = ((sizes + 1) / (ideal + 1)).log().clamp(-2, 2).view(-1, *prices.shape).mean(0)
        prices += step * over
        step *= FADE
    if h:
        indexer.outer[h][:branches] -= kept
    else:
        indexer.bias[0] -= kept[0]
    return best
