"""The loop, on a task small enough to know the answer: bring a vector close to a target."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from palmette.errors import ConfigError, LockedError, TrainingError
from palmette.machine import devices as where
from palmette.machine.folders import folder_lock
from palmette.training.config import TrainingConfig
from palmette.training.loop import AdamW, Loop, Stage, train
from support.quadratic import Quadratic


def test_it_learns_and_keeps_the_best_weights() -> None:
    task = Quadratic()
    done = train(task, TrainingConfig(steps=200, batch_size=8, learning_rate=0.05), device="cpu")
    assert done.steps == 200
    assert task.distance() < 0.05
    assert done.metrics["closeness"] == pytest.approx(-task.distance(), abs=1e-6)
    assert [entry["step"] for entry in done.history] == list(range(0, 201, 20))


def test_the_best_weights_come_back_when_later_ones_are_worse() -> None:
    task = Quadratic(spoil_after=40)  # from step 40 on, the target runs away
    config = TrainingConfig(steps=100, batch_size=8, learning_rate=0.05, decay="constant")
    done = train(task, config, device="cpu")
    assert done.best_step == 40
    assert -task.validate(task.module)["closeness"] == pytest.approx(-done.metrics["closeness"], abs=1e-6)


def test_the_seed_alone_decides_and_the_global_random_state_is_left_alone() -> None:
    results = []
    for seed in (1, 1, 2):
        task, state = Quadratic(), torch.random.get_rng_state()
        train(task, TrainingConfig(steps=15, batch_size=4, seed=seed), device="cpu")
        assert torch.equal(torch.random.get_rng_state(), state)
        results.append(task.module.weight.detach().clone())
        torch.rand(3)
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


@pytest.mark.parametrize("scale", [0.0, 2.0])
def test_parts_may_have_a_learning_rate_of_their_own(scale: float) -> None:
    moved = []
    for scales in ({"weight": scale}, {}):
        task = Quadratic()
        task.module.lr_scale = scales
        before = task.module.weight.detach().clone()
        config = TrainingConfig(steps=1, batch_size=8, learning_rate=0.01, warmup=0.0, clip=0.0)
        loop = Loop(task, config, torch.device("cpu"), None)
        loop.step(0)
        moved.append(task.module.weight.detach() - before)
    torch.testing.assert_close(moved[0], scale * moved[1])


def test_every_row_is_drawn_once_per_epoch() -> None:
    task = Quadratic(size=24)
    train(task, TrainingConfig(steps=6, batch_size=8), device="cpu")
    for epoch in (task.drawn[:3], task.drawn[3:]):
        assert sorted(np.concatenate(epoch).tolist()) == list(range(24))


RESUMED = dict(steps=50, batch_size=8, learning_rate=0.05, evaluate_every=10, seed=3)
KILLED = f"""
import sys
from palmette.training import TrainingConfig, train
from support.quadratic import Quadratic
task = Quadratic(kill_at=20, dropout=0.3)
train(task, TrainingConfig(**{RESUMED}), device="cpu", output_dir=sys.argv[1])
"""


@pytest.mark.parametrize("killed_at", [1, 20, 49])
def test_resume_after_a_kill_ends_where_an_unbroken_run_ends(
    tmp_path: Path, killed_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TrainingConfig(**RESUMED)
    if killed_at == 20:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        command = [sys.executable, "-c", KILLED, str(tmp_path)]
        done = subprocess.run(command, env=env, capture_output=True, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    else:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(os, "kill", Mock(side_effect=KeyboardInterrupt))
            task = Quadratic(kill_at=killed_at, dropout=0.3)
            train(task, config, device="cpu", output_dir=tmp_path)
    resumed, unbroken = Quadratic(dropout=0.3), Quadratic(dropout=0.3)
    second = train(resumed, config, device="cpu", output_dir=tmp_path, resume=True)
    first = train(unbroken, config, device="cpu")
    assert torch.equal(resumed.module.weight, unbroken.module.weight)
    assert len(resumed.drawn) == 50 - killed_at // 10 * 10
    for one, other in zip(first.history, second.history, strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}
    lines = [json.loads(line) for line in (tmp_path / "training.jsonl").read_text().splitlines()]
    assert lines == second.history


def test_resume_needs_the_same_settings_and_a_readable_state(tmp_path: Path) -> None:
    def run(size: int = 32, **options) -> None:
        config = TrainingConfig(steps=10, batch_size=8, **options)
        train(Quadratic(size=size), config, device="cpu", output_dir=tmp_path, resume=True)

    run()
    with pytest.raises(TrainingError, match="learning_rate: 0.001 then, 0.01 now"):
        run(learning_rate=0.01)
    with pytest.raises(TrainingError, match="size: 32 then, 16 now"):
        run(size=16)
    state = tmp_path / "training.safetensors"
    whole = state.read_bytes()
    state.write_bytes(whole[:100])
    with pytest.raises(TrainingError, match="delete it to start anew"):
        run()
    with pytest.raises(ConfigError, match="output_dir"):
        train(Quadratic(), TrainingConfig(steps=10), device="cpu", resume=True)


class Staged(Quadratic):
    """Two stages, and a module that is completed after them."""

    def stages(self, training):
        late = training.replace(steps=5, learning_rate=training.learning_rate / 10)
        return [Stage(self, training), Stage(self, late, "late")]

    def finish(self, result):
        self.module.weight.data.mul_(2)
        return replace(result, metrics={**result.metrics, "finished": 1.0})


def test_stages_run_in_order_resume_and_end_in_a_completed_module(tmp_path: Path) -> None:
    config = TrainingConfig(steps=20, batch_size=8, learning_rate=0.05)
    task, again = Staged(), Staged()
    done = train(task, config, device="cpu", output_dir=tmp_path)
    assert (done.steps, len(task.drawn)) == (25, 25)
    assert 20 <= done.best_step <= 25
    assert done.metrics["finished"] == 1.0
    assert done.metrics["closeness"] == pytest.approx(-float((task.module.weight.detach() / 2 - task.target).norm()))
    assert [entry["step"] for entry in done.history if entry["step"] in (0, 20, 5)] == [0, 20, 0, 5]
    assert (tmp_path / "training.safetensors").exists()
    assert (tmp_path / "late" / "training.safetensors").exists()
    repeated = train(again, config, device="cpu", output_dir=tmp_path, resume=True)
    assert again.drawn == []
    assert repeated == done
    assert torch.equal(task.module.weight, again.module.weight)


def test_without_stages_nothing_is_trained_but_the_module_is_completed(tmp_path: Path) -> None:
    task = Staged(size=1)
    task.stages = lambda training: []
    task.module.weight.data.fill_(1.0)
    done = train(task, TrainingConfig(steps=20), device="cpu", output_dir=tmp_path)
    assert (done.steps, done.best_step, done.history, task.drawn) == (0, 0, [], [])
    assert done.metrics == {"finished": 1.0}
    assert torch.equal(task.module.weight.detach(), torch.full((4, 4), 2.0))


def test_divergence_names_the_remedy_and_no_bad_weights_are_kept(tmp_path: Path) -> None:
    config = TrainingConfig(steps=40, batch_size=4)
    with pytest.raises(TrainingError, match=r"nan before step 8 of 40: try a lower learning_rate"):
        train(Quadratic(diverge_at=5), config, device="cpu", output_dir=tmp_path)
    resumed, unbroken = Quadratic(), Quadratic()
    for task, folder in ((resumed, tmp_path), (unbroken, None)):
        train(task, config, device="cpu", output_dir=folder, resume=folder is not None)
    assert torch.equal(resumed.module.weight, unbroken.module.weight)


def test_too_little_data_and_no_validation() -> None:
    with pytest.raises(TrainingError, match="at least 2 pairs"):
        train(Quadratic(size=1), TrainingConfig(steps=1), device="cpu")
    task = Quadratic(validates=False)
    done = train(task, TrainingConfig(steps=30, batch_size=8, learning_rate=0.05), device="cpu")
    assert (done.metrics, done.steps, done.best_step) == ({}, 30, 30)
    assert task.distance() < Quadratic().distance()  # the last weights stay


def test_two_trainings_do_not_share_a_folder(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "state")
    config = TrainingConfig(steps=2, batch_size=8)
    with folder_lock(tmp_path / "state"), pytest.raises(LockedError, match="another process uses"):
        train(Quadratic(), config, device="cpu", output_dir=tmp_path / "link")
    train(Quadratic(), config, device="cpu", output_dir=tmp_path / "link")


def test_bfloat16_trains_too() -> None:
    task = Quadratic()
    config = TrainingConfig(steps=150, batch_size=8, learning_rate=0.05, precision="bfloat16")
    train(task, config, device="cpu")
    assert task.computed_in == {torch.bfloat16}
    assert task.distance() < 0.2


@pytest.mark.parametrize(
    ("vendor", "flags", "pays"),
    [
        ("GenuineIntel", "avx512f avx512_bf16 amx_bf16", True),
        ("GenuineIntel", "avx512f avx512_bf16", False),
        ("AuthenticAMD", "avx512f avx512_bf16", True),
        ("AuthenticAMD", "avx2", False),
    ],
)
def test_bfloat16_where_it_is_faster(vendor: str, flags: str, pays: bool) -> None:
    assert where.bfloat16_pays(f"vendor_id : {vendor}\nflags : fpu {flags}\nbugs : amx_bf16\n") is pays


@pytest.mark.parametrize("capable", [True, False])
@pytest.mark.parametrize("transformer", [True, False])
def test_on_a_cpu_bfloat16_is_for_transformers(capable: bool, transformer: bool, monkeypatch) -> None:
    monkeypatch.setattr(where, "cpu_has_bfloat16", lambda: capable)
    task = Quadratic()
    task.module.transformer_learns = transformer
    train(task, TrainingConfig(steps=2, batch_size=8), device="cpu")
    assert task.computed_in == {torch.bfloat16 if capable and transformer else torch.float32}


@pytest.mark.parametrize("decay", ["cosine", "linear", "constant"])
def test_rate_rises_then_falls(decay: str) -> None:
    config = TrainingConfig(steps=100, warmup=0.1, learning_rate=1.0, decay=decay)
    rates = [config.rate(step) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * (i + 1) for i in range(10)])
    assert rates[10] == 1.0
    assert rates[99] == 1.0 if decay == "constant" else rates[99] < 0.02
    assert all(a >= b for a, b in zip(rates[10:], rates[11:], strict=False))


def pull_rows(optimizer: AdamW, table: Tensor, rows: list[int], pull: float) -> None:
    optimizer.zero_grad()
    found = F.embedding(torch.tensor(rows), table, sparse=True)
    torch.autograd.backward((found - pull).square().sum())
    optimizer.step()


def test_rows_that_are_met_at_every_step_go_the_way_of_adam_without_momentum() -> None:
    start = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    how = {"lr": 0.05, "weight_decay": 0.1}
    sparse, dense = AdamW([ours], **how), torch.optim.AdamW([theirs], betas=(0.0, 0.999), **how)
    for _ in range(20):
        pull_rows(sparse, ours, [0, 1, 2, 3], 2.0)
        dense.zero_grad()
        torch.autograd.backward((theirs - 2.0).square().sum())
        dense.step()
    torch.testing.assert_close(ours, theirs)


def test_other_rows_stay_and_what_a_row_knows_fades_while_it_waits() -> None:
    table = nn.Parameter(torch.ones(3, 2))
    optimizer = AdamW([table], lr=0.1, weight_decay=0.0)
    pull_rows(optimizer, table, [0, 0, 2], 3.0)  # a row named twice is one row with both gradients
    assert torch.equal(table[1], torch.ones(2))
    torch.testing.assert_close(table[[0, 2]], torch.full((2, 2), 1.1))
    for _ in range(500):
        pull_rows(optimizer, table, [2], 3.0)
    before = table[0].clone()
    pull_rows(optimizer, table, [0], 3.0)
    gradient, first = 2 * (1.1 - 3), 2 * 2 * (1 - 3)  # now, and at the first step
    second = (0.999**501 * first**2 + gradient**2) * 0.001 / (1 - 0.999**502)
    expected = 0.1 * -gradient / second**0.5
    torch.testing.assert_close(table[0] - before, torch.full((2,), expected), rtol=1e-4, atol=1e-6)


def test_dense_parameters_are_adamw_as_ever() -> None:
    torch.manual_seed(0)
    ours, theirs = nn.Linear(4, 2), nn.Linear(4, 2)
    theirs.load_state_dict(ours.state_dict())
    table = nn.Parameter(torch.zeros(5, 4))
    pair = (AdamW([*ours.parameters(), table], lr=0.01), torch.optim.AdamW(theirs.parameters(), lr=0.01))
    for at in range(5):
        x = torch.randn(3, 4)
        for optimizer, module in zip(pair, (ours, theirs), strict=True):
            optimizer.zero_grad()
            loss = module(x).square().sum()
            if module is ours:
                loss = loss + (F.embedding(torch.tensor([at]), table, sparse=True) - 1).square().sum()
            torch.autograd.backward(loss)
            optimizer.step()
    torch.testing.assert_close(ours.weight, theirs.weight)
    assert bool((table > 0).all())


@pytest.mark.parametrize("rows", [[0, 1], [2]])
def test_the_state_of_sparse_rows_can_be_kept(rows: list[int]) -> None:
    def run(table: nn.Parameter, optimizer: AdamW, steps: range) -> np.ndarray:
        for at in steps:
            pull_rows(optimizer, table, [*rows, at % 3], float(at))
        return table.detach().numpy().copy()

    whole = nn.Parameter(torch.ones(3, 2))
    expected = run(whole, AdamW([whole]), range(8))
    first = nn.Parameter(torch.ones(3, 2))
    optimizer = AdamW([first])
    run(first, optimizer, range(4))
    again = nn.Parameter(first.detach().clone())
    other = AdamW([again])
    other.load_state_dict(optimizer.state_dict())
    np.testing.assert_array_equal(run(again, other, range(4, 8)), expected)
