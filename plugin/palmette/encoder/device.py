"""Where to compute: one reading of ``device`` for encoders and training."""

from __future__ import annotations

import os

import torch

from palmette.errors import ConfigError

__all__ = ["auto_device", "check_device"]


def auto_device() -> torch.device:
    """The fastest device there is: cuda, then mps, then cpu.

    A GPU comes with its index: under a launcher the process's own (``LOCAL_RANK``), else the current one.
    """
    if torch.cuda.is_available():
        return torch.device("cuda", _own_gpu())
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def check_device(device: str | torch.device | None) -> torch.device:
    """The device meant, which is there; ``None`` is the best there is, ``"cuda"`` is this process's GPU."""
    if device is None:
        return auto_device()
    try:
        where = torch.device(device)
        if where.type == "cuda" and ":" not in str(where) and torch.cuda.is_available():
            where = torch.device("cuda", _own_gpu())
        torch.empty(0, device=where)
    except (RuntimeError, TypeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(_refusal(device)) from error
    if where.type == "meta":  # torch has it, but nothing can be computed there
        raise ConfigError(_refusal(device))
    return where


def _own_gpu() -> int:
    rank = os.environ.get("LOCAL_RANK", "")
    # A launcher that shows each process one GPU only calls that one 0 in all of them.
    return int(rank) % torch.cuda.device_count() if rank.isdigit() else torch.cuda.current_device()


def _refusal(device: object) -> str:
    there = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    there += ["mps"] if torch.backends.mps.is_available() else []
    choices = ", ".join(map(repr, [*there, "cpu"]))
    hint = "" if there else "; for a GPU, install a torch that is built for it, and its driver"
    return f"device {str(device)!r} cannot be used here: give {choices}, or None for the best there is{hint}"
