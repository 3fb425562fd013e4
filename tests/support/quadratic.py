"""A task whose solution is known, with switches for everything a training loop has to survive."""

from __future__ import annotations

import os
import signal

import numpy as np
import torch
from torch import nn

from palmette.training.loop import Task


class _Vector(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 4))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout(x @ self.weight)


class Quadratic(Task):
    """Learn a 4 × 4 matrix from inputs and outputs."""

    metric = "closeness"

    def __init__(
        self,
        *,
        size: int = 32,
        dropout: float = 0.0,
        spoil_after: int | None = None,
        kill_at: int | None = None,
        diverge_at: int | None = None,
        validates: bool = True,
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(size, 4, generator=generator)
        self.target = torch.randn(4, 4, generator=generator)
        self.module = _Vector(dropout)
        self.spoil_after, self.kill_at, self.diverge_at = spoil_after, kill_at, diverge_at
        self.validates = validates
        self.drawn: list[np.ndarray] = []
        self.computed_in: set[torch.dtype] = set()

    def size(self) -> int:
        return len(self.inputs)

    def to(self, device: torch.device) -> None:
        self.inputs = self.inputs.to(device)

    def loss(self, module: nn.Module, rows: np.ndarray, generator: torch.Generator, progress: float) -> torch.Tensor:
        if self.kill_at is not None and len(self.drawn) == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        step = len(self.drawn)
        self.drawn.append(rows)
        x = self.inputs[torch.from_numpy(rows)] + 0.01 * torch.randn(len(rows), 4, generator=generator)
        y = module(x)
        self.computed_in.add(y.dtype)
        sign = -1 if self.spoil_after is not None and step >= self.spoil_after else 1
        factor = float("nan") if step == self.diverge_at else 1.0
        return ((y.float() - sign * x @ self.target) ** 2).mean() * factor

    def validate(self, module: nn.Module) -> dict[str, float]:
        return {"closeness": -self.distance()} if self.validates else {}

    def distance(self) -> float:
        return float((self.module.weight.detach() - self.target).norm())
