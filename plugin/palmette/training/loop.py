"""One training loop for all methods."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from palmette.errors import ConfigError, TrainingError
from palmette.machine.devices import auto_precision, check_device
from palmette.machine.folders import folder_lock
from palmette.machine.progress import progress_bar
from palmette.training.config import TrainingConfig
from palmette.training.state import TrainingState, copy_tensors, unwritable


@dataclass(frozen=True)
class TrainingResult:
    """Outcome of a run."""

    steps: int
    best_step: int
    """Step whose weights the module has now: the last one without a validation."""
    metrics: Mapping[str, float]
    seconds: float
    history: list[dict[str, Any]] = field(default_factory=list)


class Stage(NamedTuple):
    """One run of the loop; a named stage keeps its state in a folder of that name."""

    task: Task
    training: TrainingConfig
    name: str = ""


class Task(ABC):
    """The loss, the validation and the module that a method trains.

    ``module`` learns in place. Its attribute ``transformer_learns`` asks for bfloat16 on CPUs that compute in it;
    ``lr_scale`` maps prefixes of parameter names to a multiple of the learning rate.
    """

    module: nn.Module
    metric: ClassVar[str] = "ndcg@10"
    """Validation metric to maximise, a key of what :meth:`validate` returns."""

    @abstractmethod
    def size(self) -> int:
        """Number of rows that the loss is computed on; batches are drawn of them."""

    @abstractmethod
    def loss(self, module: nn.Module, rows: NDArray[np.int64], generator: torch.Generator, progress: float) -> Tensor:
        """Scalar loss of a batch of training rows.

        Random draws come from ``generator`` (on the CPU); ``progress`` is the share of steps done, 0 … 1.
        """

    def validate(self, module: nn.Module) -> dict[str, float]:
        """Retrieval metrics on held-out queries; empty without any."""
        return {}

    def to(self, device: torch.device) -> None:  # noqa: B027 (texts and token ids stay where they are)
        """Move the tensors that the loss reads to the training device."""

    def stages(self, training: TrainingConfig) -> Sequence[Stage]:
        """Runs of the loop, in order."""
        return [Stage(self, training)]

    def finish(self, result: TrainingResult) -> TrainingResult:
        """Complete the module after the last stage; returns the result, perhaps with other metrics."""
        return result


class Untrained(Task):
    """Task of a method that has nothing to train, or of data that teach it nothing."""

    def __init__(self) -> None:
        self.module = nn.Module()

    def size(self) -> int:
        """Return 0."""
        return 0

    def stages(self, training: TrainingConfig) -> Sequence[Stage]:
        """Return no stages."""
        return ()

    def loss(self, module: nn.Module, rows: NDArray[np.int64], generator: torch.Generator, progress: float) -> Tensor:
        """Raise TrainingError, since no stage calls it."""
        raise TrainingError("this task has nothing to train: give it stages, and a loss")


class AdamW(torch.optim.AdamW):
    """AdamW with lazy updates of sparse rows.

    Of a parameter with a sparse gradient (``F.embedding(…, sparse=True)``) only the batch's rows change, so a step
    costs as much as the batch is large, not the table. A row's second moment and its weight decay catch up on the
    steps since its last update. There is no momentum, which would have to move rows that no batch holds.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step; sparse gradients are consumed before the usual rule sees the dense ones."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter.grad.is_sparse:
                    self._update_rows(parameter, parameter.grad.coalesce(), group)
                    parameter.grad = None
        return super().step(closure)

    def _update_rows(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        """Update the rows of a sparse gradient by AdamW; decay catches up on the steps since each row's last."""
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["met"] = torch.zeros(len(parameter), device=parameter.device)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        now, (_, beta), rate = float(state["step"]), group["betas"], float(group["lr"])
        rows, values = gradient.indices()[0], gradient.values()  # [U], [U, d]
        gap = (now - state["met"][rows])[:, None]  # [U, 1] steps since a row's last update
        second = state["exp_avg_sq"][rows] * beta**gap + (1 - beta) * values.square()  # [U, d]
        state["exp_avg_sq"][rows], state["met"][rows] = second, now
        shrunk = parameter[rows] * (1 - rate * group["weight_decay"]) ** gap
        parameter[rows] = shrunk - rate * values / ((second / (1 - beta**now)).sqrt() + group["eps"])


def _generator(*seeds: int) -> torch.Generator:
    state = np.random.SeedSequence(seeds).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0]) >> 1)


@lru_cache(maxsize=1)
def _epoch_order(size: int, *seeds: int) -> NDArray[np.int64]:
    """Permutation of an epoch's rows; shuffling a million of them at each step would cost more than the step."""
    order: NDArray[np.int64] = torch.randperm(size, generator=_generator(*seeds)).numpy()
    return order


class Loop:
    """State of one run."""

    def __init__(self, task: Task, config: TrainingConfig, device: torch.device, folder: Path | None) -> None:
        self.task, self.config, self.device, self.folder = task, config, device, folder
        task.to(device)
        self.module = task.module.to(device)
        # Parameters by the module's lr_scale and by weight decay; vectors (biases, scales) have none.
        scales: Mapping[str, float] = getattr(task.module, "lr_scale", {})
        groups: dict[tuple[float, bool], list[nn.Parameter]] = {(1.0, False): [], (1.0, True): []}
        for name, parameter in task.module.named_parameters():
            if parameter.requires_grad:
                scale = next((scales[prefix] for prefix in scales if name.startswith(prefix)), 1.0)
                groups.setdefault((scale, parameter.ndim <= 1), []).append(parameter)
        options = [
            {"params": params, "weight_decay": 0.0 if vectors else config.weight_decay, "lr_scale": scale}
            for (scale, vectors), params in sorted(groups.items(), key=itemgetter(0))
        ]
        self.optimizer = AdamW(options, lr=config.learning_rate)
        precision: str = config.precision
        if precision == "auto":  # on a CPU, bfloat16 pays where a transformer learns
            pays = self.device.type != "cpu" or getattr(task.module, "transformer_learns", False)
            precision = auto_precision(self.device) if pays else "float32"
        self.half = precision == "bfloat16"
        self.state = TrainingState()
        self.precise = torch.float64 if self.device.type == "cpu" else torch.float32
        self.running: Tensor | None = None  # mean of the last losses

    def resume(self, path: Path) -> None:
        """Go on from a saved state, when there is one."""
        self.state = TrainingState.load(path, self.task.module, self.optimizer, self.config, self.task.size())
        loss = self.state.history[-1].get("loss") if self.state.history else None
        self.running = None if loss is None else torch.tensor(loss, device=self.device, dtype=self.precise)

    def step(self, step: int) -> None:
        """One optimiser step."""
        config, device, size = self.config, self.device, self.task.size()
        # 1. The batch: rows of this epoch's order.
        batch = min(config.batch_size, size)
        epoch, index = divmod(step, size // batch)
        rows = _epoch_order(size, config.seed, 1, epoch)[index * batch : (index + 1) * batch]
        # 2. The loss. Its random draws depend on seed and step alone, so that a resumed run repeats them.
        devices = [device] if device.type == "cuda" else []
        half = torch.autocast(device.type, dtype=torch.bfloat16) if self.half else nullcontext()
        with torch.random.fork_rng(devices=devices), half:
            generator = _generator(config.seed, 2, step)
            # Dropout's seed; torch.manual_seed would note down a stack for every accelerator that is not there.
            seeded = torch.manual_seed if devices else torch.default_generator.manual_seed
            seeded(int(torch.randint(2**62, (), generator=generator)))
            loss = self.task.loss(self.module, rows, generator, step / config.steps)
        # 3. The mean of the last losses; it stays on a GPU, since reading it waits for all that is computed there.
        value = loss.detach().to(self.precise)
        self.running = value if self.running is None else 0.9 * self.running + 0.1 * value
        # 4. The gradient, clipped, and the update at this step's rate.
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        if config.clip:
            dense = [p for p in self.module.parameters() if p.grad is not None and not p.grad.is_sparse]
            nn.utils.clip_grad_norm_(dense, config.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = config.rate(step) * group["lr_scale"]
        self.optimizer.step()

    def validate(self, step: int) -> dict[str, float]:
        """Score the weights after ``step`` steps and remember them when they are the best so far."""
        self.module.eval()
        with torch.inference_mode():
            metrics = self.task.validate(self.module)
        self.module.train()
        state = self.state
        if metrics and (score := metrics[self.task.metric]) > state.best_score:
            state.best = copy_tensors(self.module.state_dict())
            state.best_score, state.best_step, state.best_metrics = score, step, metrics
        return metrics

    def log(self, step: int, **values: Any) -> None:
        """Add a line to the history and to the log."""
        self.state.log({"step": step, "seconds": round(self.state.seconds, 3), **values}, self.folder)

    def run(self, bar: Any) -> None:
        """Take the steps that the state has not taken yet."""
        config, state = self.config, self.state
        clock = time.monotonic()
        if state.step == 0:
            self.log(0, metrics=self.validate(0))
        for step in range(state.step, config.steps):
            # 1. Learn.
            self.step(step)
            done, last = step + 1, step + 1 == config.steps
            state.seconds += time.monotonic() - clock
            clock = time.monotonic()
            bar.update(1)
            if done % config.interval and not last:
                continue
            # 2. Never score or keep weights that a bad loss has reached: the mean stays what it made of it.
            assert self.running is not None
            if not math.isfinite(loss := float(self.running)):
                raise TrainingError(
                    f"the loss became {loss} before step {done} of {config.steps}: try a lower learning_rate "
                    f"(now {config.learning_rate:g}) or precision='float32' (now {config.precision!r})"
                )
            # 3. Score the weights, and tell it.
            metrics = self.validate(done)
            self.log(done, loss=loss, rate=config.rate(step), metrics=metrics)
            if metrics:
                name = self.task.metric
                bar.set_postfix({"loss": f"{loss:.3f}", name: f"{metrics[name]:.3f}"})
            # 4. Keep the state.
            if self.folder is not None:
                state.save(self.folder, done, self.module, self.optimizer, config, self.task.size())


def train(
    task: Task,
    config: TrainingConfig,
    *,
    device: str | None = None,
    output_dir: str | Path | None = None,
    resume: bool = False,
    progress: bool | None = None,
    label: str = "train",
) -> TrainingResult:
    """Train ``task.module`` in place, stage by stage, leave the best weights in it, and finish the task.

    Args:
        task: What to learn.
        config: How.
        device: Where to train; ``None`` for the best there is.
        output_dir: Where the state (``training.safetensors``) and the log (``training.jsonl``) go; ``None`` keeps none.
        resume: Go on from the state in ``output_dir``; without one, start anew.
        progress: A progress bar; ``None`` shows it on a terminal only.
        label: Title of the bar.
    """
    stages = task.stages(config)
    if stages and task.size() < 2:
        raise TrainingError(f"training needs at least 2 pairs of question and document, got {task.size()}")
    if resume and output_dir is None:
        raise ConfigError("resume=True needs the output_dir of the run to go on with")
    where, result = check_device(device), TrainingResult(0, 0, {}, 0.0)
    for stage in stages:
        # 1. The state's folder: made, and held so that no other process writes there.
        folder = None if output_dir is None else Path(output_dir, stage.name)
        loop = Loop(stage.task, stage.training, where, folder)
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise unwritable(folder, error) from error
        with nullcontext() if folder is None else folder_lock(folder.resolve(), patience=0):
            # 2. The run, from its start or from the saved state.
            if resume and folder is not None:
                loop.resume(folder)
            loop.module.train()
            state, module = loop.state, stage.task.module
            with progress_bar(
                progress,
                total=stage.training.steps,
                initial=state.step,
                desc=f"{label}, {stage.name}" if stage.name else label,
                unit="step",
            ) as bar:
                loop.run(bar)
        # 3. The best weights, and the sum of all stages so far.
        if state.best:  # without a validation the last ones stay
            module.load_state_dict(state.best)
        module.eval()
        result = TrainingResult(
            steps=result.steps + stage.training.steps,
            best_step=result.steps + (state.best_step if state.best else stage.training.steps),
            metrics=state.best_metrics,
            seconds=result.seconds + state.seconds,
            history=result.history + state.history,
        )
    return task.finish(result)
