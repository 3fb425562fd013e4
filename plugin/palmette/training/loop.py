"""The loop."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from tqdm.auto import tqdm

from palmette.encoder.device import auto_precision
from palmette.errors import ConfigError, TrainingError
from palmette.training.config import TrainingConfig
from palmette.training.optimizer import AdamW
from palmette.training.processes import Processes, processes
from palmette.training.state import TrainingState, unwritable

__all__ = ["Task", "Trained", "train"]


class Task(Protocol):
    """What a method trains."""

    @property
    def module(self) -> nn.Module:
        """What learns; its weights are changed in place.

        Where it says ``transformer_learns``, bfloat16 pays on CPUs that compute in it.
        """
        ...

    @property
    def metric(self) -> str:
        """The validation metric to maximise, a key of what :meth:`validate` returns."""
        ...

    def size(self) -> int:
        """How many training rows (pairs) there are."""
        ...

    def loss(
        self, module: nn.Module, rows: NDArray[np.int64], generator: torch.Generator, progress: float
    ) -> Tensor:
        """Scalar loss of a batch of training rows.

        Random draws come from ``generator`` (on the CPU); ``progress`` is the share of steps done, 0 … 1.
        """
        ...

    def validate(self, module: nn.Module) -> dict[str, float]:
        """Retrieval metrics on held-out queries; empty when there are none."""
        ...

    def to(self, device: torch.device) -> None:
        """Move what the loss reads to the device that trains."""
        ...


@dataclass(frozen=True)
class Trained:
    """What a run did; of several processes, only the main one should save it and speak of it."""

    steps: int
    best_step: int
    """The step after which the weights were as they are now: the last one where nothing was validated."""
    metrics: Mapping[str, float]
    seconds: float
    stopped_early: bool
    history: list[dict[str, Any]] = field(default_factory=list)
    main_process: bool = True


def _generator(*seeds: int) -> torch.Generator:
    sequence = np.random.SeedSequence(seeds)
    return torch.Generator().manual_seed(int(sequence.generate_state(1, np.uint64)[0] >> 1))


@lru_cache(maxsize=1)
def _order(size: int, *seeds: int) -> NDArray[np.int64]:
    """The rows of an epoch; shuffling a million of them at each step would cost more than the step."""
    order: NDArray[np.int64] = torch.randperm(size, generator=_generator(*seeds)).numpy()
    return order


def _rows(config: TrainingConfig, size: int, step: int, process: int) -> NDArray[np.int64]:
    """The training rows of a step: each epoch is a fresh permutation, cut into batches."""
    batch = min(config.batch_size, size)
    per_epoch = size // batch
    epoch, index = divmod(step, per_epoch)
    order = _order(size, config.seed, 1, epoch, process)
    return order[index * batch : (index + 1) * batch]


def _groups(module: nn.Module, config: TrainingConfig) -> list[dict[str, Any]]:
    """By weight decay, and by pace: ``module.paces`` may give parts, by name, a multiple of the learning rate."""
    paces: Mapping[str, float] = getattr(module, "paces", {})
    named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    pace = {name: next((paces[part] for part in paces if name.startswith(part)), 1.0) for name, _ in named}
    groups: list[dict[str, Any]] = []
    for each in sorted({*pace.values(), 1.0}):
        own = [p for name, p in named if pace[name] == each]
        matrices, others = [p for p in own if p.ndim > 1], [p for p in own if p.ndim <= 1]
        groups.append({"params": matrices, "weight_decay": config.weight_decay, "pace": each})
        groups.append({"params": others, "weight_decay": 0.0, "pace": each})
    return groups


def _autocast(config: TrainingConfig, module: nn.Module, device: torch.device) -> Any:
    wanted = config.precision
    if wanted == "auto":
        pays = device.type != "cpu" or getattr(module, "transformer_learns", False)
        wanted = "bfloat16" if pays and auto_precision(device) == "bfloat16" else "float32"
    return torch.autocast(device.type, dtype=torch.bfloat16) if wanted == "bfloat16" else nullcontext()


class _Loop:
    """State of one run; :func:`train` drives it."""

    def __init__(self, task: Task, config: TrainingConfig, group: Processes, output_dir: Path | None) -> None:
        self.task, self.config, self.processes = task, config, group
        self.device, self.main = self.processes.device, self.processes.rank == 0
        task.to(self.device)
        self.module = self.processes.prepare(task.module)
        self.optimizer = AdamW(_groups(task.module, config), lr=config.learning_rate)
        self.state = TrainingState.fresh(task.module)
        self.store = output_dir if self.main else None
        # Reading a value off a GPU waits for it: losses stay there until a validation or a save.
        self.eager = self.processes.alone and self.device.type == "cpu"
        self.precise = torch.float64 if self.device.type == "cpu" else torch.float32
        self.running: Tensor | None = None
        self.bad_step = torch.tensor(-1, device=self.device)
        self.bad_loss = torch.tensor(0.0, device=self.device, dtype=self.precise)

    def resume(self, path: Path) -> None:
        """Go on from a saved state, when there is one."""
        self.state = TrainingState.load(path, self.task.module, self.optimizer, self.config, self.task.size())
        if len({self.state.step, self.processes.agree(self.state.step)}) > 1:
            raise TrainingError(f"not all processes see {path}: use an output_dir on a disk that they share")
        loss = self.state.history[-1].get("loss") if self.state.history else None
        self.running = None if loss is None else torch.tensor(loss, device=self.device, dtype=self.precise)

    def step(self, step: int) -> None:
        """One optimiser step."""
        config, device = self.config, self.device
        for group in self.optimizer.param_groups:
            group["lr"] = config.rate(step) * group["pace"]
        process = self.processes.rank
        rows = _rows(config, self.task.size(), step, process)
        devices = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), _autocast(config, self.task.module, device):
            generator = _generator(config.seed, 2, step, process)
            # Dropout's seed; torch.manual_seed would note down a stack for every accelerator that is not there.
            seeded = torch.manual_seed if devices else torch.default_generator.manual_seed
            seeded(int(torch.randint(2**62, (), generator=generator)))
            loss = self.task.loss(self.module, rows, generator, step / config.steps)
        value = loss.detach().to(self.precise)
        fresh = (self.bad_step < 0) & ~torch.isfinite(value)
        self.bad_step = torch.where(fresh, step, self.bad_step)
        self.bad_loss = torch.where(fresh, value, self.bad_loss)
        if self.eager:
            self.check()
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        if config.clip:
            dense = [p for p in self.module.parameters() if p.grad is not None and not p.grad.is_sparse]
            self.processes.clip(dense, config.clip)
        self.optimizer.step()
        self.running = value if self.running is None else 0.9 * self.running + 0.1 * value

    def check(self) -> None:
        """Raise, in all processes, when a loss of any was not finite, and name the first such step."""
        found = self.processes.gather((int(self.bad_step), float(self.bad_loss)))
        bad = sorted((step, value) for step, value in found if step >= 0)
        if bad:
            step, value = bad[0]
            raise TrainingError(
                f"the loss became {value} at step {step} of {self.config.steps}: try a lower learning_rate "
                f"(now {self.config.learning_rate:g}) or precision='float32' (now {self.config.precision!r})"
            )

    def validate(self, step: int) -> dict[str, float]:
        """Score the weights after ``step`` steps and remember them when they are the best so far."""
        metrics: dict[str, float] = {}
        if self.main:  # one opinion for all: they must stop, and take the best weights, together
            self.module.eval()
            with torch.inference_mode():
                metrics = self.task.validate(self.task.module)
            self.module.train()
        metrics = self.processes.agree(metrics)
        if not metrics:
            return {}
        score = metrics[self.task.metric]
        if score > self.state.best_score:
            self.state.remember(self.task.module, step, score, metrics)
        return metrics

    def record(self, step: int, **values: Any) -> None:
        """Add a line to the history and to the log."""
        entry = self.processes.agree({"step": step, "seconds": round(self.state.seconds, 3), **values})
        self.state.log(entry, self.store)

    def save(self, step: int) -> None:
        """Write everything a resume needs."""
        if self.store is not None:
            self.state.save(self.store, step, self.task.module, self.optimizer, self.config, self.task.size())


def _run(loop: _Loop, bar: Any) -> tuple[int, bool]:
    """Steps until the end or until patience is spent; returns (steps done, stopped early)."""
    config, task = loop.config, loop.task
    clock = time.monotonic()
    if loop.state.step == 0:
        loop.record(0, metrics=loop.validate(0))
    for step in range(loop.state.step, config.steps):
        loop.step(step)
        done, last = step + 1, step + 1 == config.steps
        loop.state.seconds += time.monotonic() - clock
        clock = time.monotonic()
        bar.update(1)
        due = done % config.interval == 0 or last
        saving = (due if config.save_every is None else done % config.save_every == 0) or last
        if (due or saving) and not loop.eager:
            loop.check()
        if due:
            assert loop.running is not None
            metrics, loss = loop.validate(done), float(loop.running)
            loop.record(done, loss=loss, rate=config.rate(step), metrics=metrics)
            if metrics:
                bar.set_postfix(loss=f"{loss:.3f}", **{task.metric: f"{metrics[task.metric]:.3f}"})
        if saving:
            loop.save(done)
        if loop.state.stopped(config):
            loop.save(done)
            return done, True
    return max(config.steps, loop.state.step), False


def train(
    task: Task,
    config: TrainingConfig,
    *,
    device: str | None = None,
    alone: bool = False,
    output_dir: str | Path | None = None,
    resume: bool = False,
    progress: bool | None = None,
    label: str = "train",
) -> Trained:
    """Train ``task.module`` in place and leave the best weights in it.

    Args:
        task: What to learn.
        config: How.
        device: Where to train; ``None`` for the best there is. Of several processes each takes its own GPU.
        alone: Train in this process alone, even where it is one of several.
        output_dir: Where the state (``training.safetensors``) and the log (``training.jsonl``) go; ``None`` keeps none.
        resume: Go on from the state in ``output_dir``; without one, start anew.
        progress: A progress bar; ``None`` shows it on a terminal only.
        label: What the bar says.

    Returns:
        What the run did, with the metrics of the best weights.
    """
    if task.size() < 2:
        raise TrainingError(f"training needs at least 2 pairs of question and document, got {task.size()}")
    if resume and output_dir is None:
        raise ConfigError("resume=True needs the output_dir of the run to go on with")
    folder = None if output_dir is None else Path(output_dir)
    loop = _Loop(task, config, processes(device, alone=alone), folder)
    if loop.store is not None:
        try:
            loop.store.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(loop.store, error) from error
    if resume and folder is not None:
        loop.resume(folder)
    loop.module.train()
    hidden = None if progress is None else not progress
    quiet = hidden if loop.main else True
    with tqdm(total=config.steps, initial=loop.state.step, desc=label, unit="step", disable=quiet) as bar:
        steps, stopped = (loop.state.step, True) if loop.state.stopped(config) else _run(loop, bar)
    loop.state.restore(task.module)
    task.module.eval()
    return Trained(
        steps=steps,
        best_step=loop.state.best_step if loop.state.best else steps,
        metrics=loop.state.best_metrics,
        seconds=loop.state.seconds,
        stopped_early=stopped,
        history=loop.state.history,
        main_process=loop.main,
    )
