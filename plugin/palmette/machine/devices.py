"""Choice of device and precision."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palmette.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    import torch
    from torch import nn


@cache
def has_torch() -> bool:
    """Return whether torch and sentence-transformers (the extra ``train``) are installed, without importing them."""
    return all(find_spec(name) is not None for name in ("torch", "sentence_transformers"))


def require_torch(purpose: str = "training") -> None:
    """Raise MissingExtraError unless :func:`has_torch`: called before anything is read or written."""
    if not has_torch():
        raise MissingExtraError("torch", "train", purpose)


def may_have_gpu() -> bool:
    """Return whether torch is worth asking for a GPU: there is a driver's file, or an Apple processor."""
    if sys.platform == "darwin":
        return platform.machine() == "arm64"
    return any(Path(name).exists() for name in ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")) or sys.platform == "win32"


def check_device(device: str | torch.device | None) -> torch.device:
    """Return a device that exists.

    ``None`` is the fastest there is (cuda, mps, cpu). ``"cuda"`` is the current GPU, with its index.
    """
    import torch

    gpu, named = torch.cuda.is_available(), device is not None
    if device is None:
        device = "cuda" if gpu else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        where = torch.device(device)
        if where.type == "cuda" and ":" not in str(where) and gpu:
            where = torch.device("cuda", torch.cuda.current_device())
        if where.type == "meta":  # exists in torch, but computes nothing
            raise RuntimeError
        if named:
            torch.empty(0, device=where)
    except (RuntimeError, TypeError, AssertionError, NotImplementedError) as error:
        gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
        gpus += ["mps"] if torch.backends.mps.is_available() else []
        choices = ", ".join(map(repr, [*gpus, "cpu"]))
        hint = "" if gpus else "; for a GPU, install a torch that is built for it, and its driver"
        raise ConfigError(
            f"device {str(device)!r} cannot be used here: give {choices}, or None for the best there is{hint}"
        ) from error
    return where


def auto_precision(device: torch.device) -> str:
    """Fastest precision of a device at almost no loss.

    bfloat16 where it is faster: GPUs since Ampere, and CPUs that :func:`bfloat16_pays` knows (cosine to float32 above
    .9999 for all-MiniLM-L6-v2). Older GPUs take float16. All else takes float32; mps is not measured.
    """
    import torch

    if device.type == "cuda":
        return "bfloat16" if torch.cuda.get_device_capability(device) >= (8, 0) else "float16"
    return "bfloat16" if device.type == "cpu" and cpu_has_bfloat16() else "float32"


@cache
def cpu_has_bfloat16() -> bool:
    """Ask Linux: torch answers yes on CPUs that emulate the instructions, too."""
    try:
        return bfloat16_pays(Path("/proc/cpuinfo").read_text("utf-8", "replace"))
    except OSError:
        return False


def bfloat16_pays(cpuinfo: str) -> bool:
    """Return whether a CPU computes faster in bfloat16: with AMX, and AMD's with AVX-512 BF16.

    Intel's with AVX-512 BF16 alone encode by .65 of float32's speed, and keep hundreds of megabytes for the shapes of
    batches.
    """
    flags = cpuinfo.partition("flags")[2].partition("\n")[0].split()
    return "amx_bf16" in flags or ("avx512_bf16" in flags and "AuthenticAMD" in cpuinfo)


def load_module(make: Callable[[], nn.Module | None], weights: Mapping[str, Any]) -> nn.Module | None:
    """Make a method's module, if it has one, and load its weights; raise RuntimeError where they do not fit."""
    # 1. The sizes of the weights are compared first, so that no network takes memory for other numbers than they have.
    expected: dict[str, Any] = {}
    if weights:
        import torch  # what has no weights needs none

        # A network over a copy of its encoder cannot be made without numbers; it is as large as the encoder.
        with torch.device("meta"), suppress(RuntimeError):
            draft = make()
            expected = {} if draft is None else draft.state_dict()
    for name in expected.keys() & weights.keys():
        if expected[name].shape != weights[name].shape:
            raise RuntimeError(f"{name} is {[*weights[name].shape]} instead of {[*expected[name].shape]}")
    # 2. Then it is made in earnest.
    module = make()
    if module is not None:
        module.load_state_dict(weights)
    elif weights:
        raise RuntimeError(f"the method has no weights, and {min(weights)} is one")
    return module
