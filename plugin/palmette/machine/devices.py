"""Choice of device and precision, and training in several processes."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from palmette.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

_PATIENCE = timedelta(days=1)  # for another process may encode for hours; launchers end those that crashed


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

    ``None`` is the fastest there is (cuda, mps, cpu). ``"cuda"`` gets an index: under a launcher the process's own
    GPU (``LOCAL_RANK``), else the current one.
    """
    import torch

    gpu, named = torch.cuda.is_available(), device is not None
    if device is None:
        device = "cuda" if gpu else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        where = torch.device(device)
        if where.type == "cuda" and ":" not in str(where) and gpu:
            rank = os.environ.get("LOCAL_RANK", "")
            # Some launchers show each process a single GPU, which is number 0 in all of them.
            own = int(rank) % torch.cuda.device_count() if rank.isdigit() else torch.cuda.current_device()
            where = torch.device("cuda", own)
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


class Processes:
    """Processes of one training: this one, or several under ``accelerate launch`` or ``torchrun``, each on its device.

    Alone it does without accelerate, whose decisions would hold for every later run.
    """

    def __init__(self, device: torch.device, *, alone: bool) -> None:
        self.alone, self.device, self.rank = alone, device, 0
        if not alone:
            from accelerate import Accelerator

            _join(device)
            self._accelerator = Accelerator(cpu=device.type == "cpu")
            self.device, self.rank = self._accelerator.device, self._accelerator.process_index

    def prepare(self, module: nn.Module) -> nn.Module:
        """Put a module on the device; its gradients become the mean over all processes."""
        return module.to(self.device) if self.alone else cast("nn.Module", self._accelerator.prepare(module))

    def clip(self, parameters: Iterable[Tensor], norm: float) -> None:
        """Bound the gradient's norm."""
        from torch import nn

        (nn.utils if self.alone else self._accelerator).clip_grad_norm_(parameters, norm)

    def broadcast(self, value: Any) -> Any:
        """Return the main process's value in all processes."""
        if self.alone:
            return value
        from accelerate.utils import broadcast_object_list

        return broadcast_object_list([value])[0]

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes in each of them."""
        if self.alone:
            return [value]
        from accelerate.utils import gather_object

        return list(gather_object([value]))


def _several() -> bool:
    return int(os.environ.get("WORLD_SIZE") or 1) > 1


def processes(device: str | torch.device | None, *, alone: bool = False) -> Processes:
    """Return the processes of this run, or this one ``alone``; a device that is not there raises."""
    where = check_device(device)
    if alone or not _several():
        return Processes(where, alone=True)
    if where.type == "cuda" and where != check_device("cuda"):
        raise ConfigError(
            f"device {str(device)!r} is one GPU, and {os.environ['WORLD_SIZE']} processes run: "
            "give 'cuda', and each takes its own"
        )
    return Processes(where, alone=False)


def main_process() -> bool:
    """Tell whether this process prints and writes for all; always true where there is one."""
    return not _several() or int(os.environ.get("RANK") or 0) == 0


@contextmanager
def main_process_first(device: str | torch.device | None) -> Iterator[None]:
    """Let the main process do the work before the others, which then find it in the cache."""
    if not _several():
        yield
        return
    _join(check_device(device))
    import torch

    # Not accelerate's own context: its barrier names a GPU even where all processes compute on the CPU.
    if not main_process():
        torch.distributed.barrier()
    yield
    if main_process():
        torch.distributed.barrier()


def finish() -> None:
    """Wait until all processes are done, and disconnect."""
    if not _several():
        return
    import torch

    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def _join(device: torch.device) -> Any:
    """Connect this process to the others, once."""
    from accelerate import PartialState

    return PartialState(cpu=device.type == "cpu", timeout=_PATIENCE)


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
