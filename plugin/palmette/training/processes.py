"""One process or several: where a loop runs, and what its processes have to agree on."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from palmette.encoder.device import check_device
from palmette.errors import ConfigError

__all__ = ["Processes", "finish", "main_first", "main_process", "processes"]

_PATIENCE = timedelta(
    days=1
)  # the others may wait for hours while the first encodes; launchers end the crashed


class Processes(Protocol):
    """What the loop needs of the processes that train together."""

    device: torch.device
    rank: int
    alone: bool

    def prepare(self, module: nn.Module) -> nn.Module:
        """The module on the device, so that its gradients are the mean over all processes."""
        ...

    def clip(self, parameters: Iterable[Tensor], norm: float) -> None:
        """Bound the gradient's norm."""
        ...

    def agree(self, value: Any) -> Any:
        """The main process's value, in all of them."""
        ...

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, in all of them."""
        ...


class _Alone:
    """One process. Accelerate is kept out: what it decides holds for the whole process, for every later run."""

    alone, rank = True, 0

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def prepare(self, module: nn.Module) -> nn.Module:
        return module.to(self.device)

    def clip(self, parameters: Iterable[Tensor], norm: float) -> None:
        nn.utils.clip_grad_norm_(parameters, norm)

    def agree(self, value: Any) -> Any:
        return value

    def gather(self, value: Any) -> list[Any]:
        return [value]


class _Together:
    """Several processes, each with its own device, under ``accelerate launch`` or ``torchrun``."""

    alone = False

    def __init__(self, device: torch.device) -> None:
        from accelerate import Accelerator

        _join(device)
        self.accelerator = Accelerator(cpu=device.type == "cpu")
        self.device: torch.device = self.accelerator.device
        self.rank: int = self.accelerator.process_index

    def prepare(self, module: nn.Module) -> nn.Module:
        prepared: nn.Module = self.accelerator.prepare(module)
        return prepared

    def clip(self, parameters: Iterable[Tensor], norm: float) -> None:
        self.accelerator.clip_grad_norm_(parameters, norm)

    def agree(self, value: Any) -> Any:
        from accelerate.utils import broadcast_object_list

        return broadcast_object_list([value])[0]

    def gather(self, value: Any) -> list[Any]:
        from accelerate.utils import gather_object

        return list(gather_object([value]))


def _several() -> bool:
    return int(os.environ.get("WORLD_SIZE") or 1) > 1


def main_process() -> bool:
    """Whether this process speaks and writes for all: always, where there is one."""
    return not _several() or int(os.environ.get("RANK") or 0) == 0


def processes(device: str | torch.device | None, *, alone: bool = False) -> Processes:
    """The processes of this run, or this one ``alone``; a device that is not there raises."""
    where = check_device(device)
    if alone or not _several():
        return _Alone(where)
    if where.type == "cuda" and where != check_device("cuda"):
        raise ConfigError(
            f"device {str(device)!r} is one GPU, and {os.environ['WORLD_SIZE']} processes run: "
            "give 'cuda', and each takes its own"
        )
    return _Together(where)


@contextmanager
def main_first(device: str | torch.device | None) -> Iterator[None]:
    """Let the main process do the work before the others, which then find it in the cache."""
    if not _several():
        yield
        return
    with _join(check_device(device)).main_process_first():
        yield


def finish() -> None:
    """Wait until all processes are done, and part."""
    if _several() and torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def _join(device: torch.device) -> Any:
    """This process among the others; the first call connects them."""
    from accelerate import PartialState

    return PartialState(cpu=device.type == "cpu", timeout=_PATIENCE)
