"""State of a training run: in memory while it runs, in one file so that it can go on after a kill."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from palmette.errors import TrainingError
from palmette.training.config import TrainingConfig

STATE = "training.safetensors"
"""File of the weights and optimiser state."""
LOG = "training.jsonl"
"""File of the training log."""
_FACTS = ("best_step", "best_metrics", "step", "seconds", "history")


def copy_tensors(tensors: Mapping[str, Tensor], prefix: str = "") -> dict[str, Tensor]:
    """Copies of tensors, whose names get a prefix."""
    return {f"{prefix}{name}": value.detach().clone().contiguous() for name, value in tensors.items()}


@dataclass
class TrainingState:
    """Progress, history and the best weights of a run."""

    best: dict[str, Tensor] = field(default_factory=dict)
    best_score: float = -math.inf
    best_step: int = 0
    best_metrics: dict[str, float] = field(default_factory=dict)
    step: int = 0
    seconds: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)

    def log(self, entry: dict[str, Any], folder: Path | None) -> None:
        """Append to the history, and to the log file."""
        self.history.append(entry)
        if folder is not None:
            text = "".join(json.dumps(line) + "\n" for line in self.history)
            _replace(folder / LOG, lambda path: path.write_text(text, encoding="utf-8"))

    def save(
        self, folder: Path, step: int, module: nn.Module, optimizer: Any, config: TrainingConfig, size: int
    ) -> None:
        """Write one file, whole or not at all."""
        self.step = step
        tensors = copy_tensors(module.state_dict(), "module.") | copy_tensors(self.best, "best.")
        for index, slots in optimizer.state_dict()["state"].items():
            tensors |= copy_tensors(slots, f"optimizer.{index}.")
        facts = {name: getattr(self, name) for name in _FACTS}
        facts |= {"best_score": self.best_score if self.best else None, "config": config.to_dict(), "size": size}
        _replace(folder / STATE, lambda path: save_file(tensors, str(path), {"state": json.dumps(facts)}))

    @classmethod
    def load(cls, folder: Path, module: nn.Module, optimizer: Any, config: TrainingConfig, size: int) -> Self:
        """Read the state back into module and optimiser; without a file, a fresh state."""
        path = folder / STATE
        if not path.exists():
            return cls()
        try:
            with safe_open(str(path), framework="pt") as file:
                facts = json.loads(file.metadata()["state"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            raise TrainingError(f"{path} cannot be read ({error}): delete it to start anew") from error
        now, then = {**config.to_dict(), "size": size}, {**facts["config"], "size": facts["size"]}
        if changed := [f"{k}: {then.get(k)!r} then, {now[k]!r} now" for k in now if then.get(k) != now[k]]:
            raise TrainingError(
                f"{path} was written by a run with other settings ({'; '.join(changed)}): "
                "use the same settings to resume, or another output_dir"
            )
        groups: dict[str, dict[str, Any]] = {"module": {}, "best": {}, "optimizer": {}}
        for name, value in tensors.items():
            group, rest = name.split(".", 1)
            groups[group][rest] = value
        try:
            module.load_state_dict(groups["module"])
        except RuntimeError as error:
            raise TrainingError(
                f"{path} belongs to another model ({error}): delete it or use another output_dir"
            ) from error
        slots: dict[int, dict[str, Any]] = {}
        for key, value in groups["optimizer"].items():
            index, name = key.split(".", 1)
            slots.setdefault(int(index), {})[name] = value
        optimizer.load_state_dict({**optimizer.state_dict(), "state": slots})
        device = next(module.parameters()).device
        return cls(
            best={name: value.to(device) for name, value in groups["best"].items()},
            best_score=-math.inf if facts["best_score"] is None else facts["best_score"],
            **{name: facts[name] for name in _FACTS},
        )


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write beside ``path`` and move over it, so that a reader sees the old or the new file."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except (OSError, SafetensorError) as error:
        raise unwritable(path.parent, error) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def unwritable(folder: Path, error: Exception) -> TrainingError:
    """Error for a folder that cannot keep the state."""
    return TrainingError(
        f"the training state cannot be written to {str(folder)!r} ({error}): "
        "give an output_dir (--state) with room that you may write"
    )
