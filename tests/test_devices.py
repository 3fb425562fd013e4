"""Two processes on one machine: they train as one, stop as one, and one speaks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from palmette import load_model
from palmette.errors import ConfigError
from palmette.training.config import TrainingConfig
from palmette.training.loop import train
from support.quadratic import Quadratic
from support.tiny import pairs

# So small a rate improves nothing: patience is spent at the first validation.
WORDS = (
    "--standalone --nproc_per_node 2 -m palmette train tree {data} --out {out} --encoder fake:32 --device cpu "
    "--preset paper --split linear --depth 3 --batch-size 8 --quiet --steps 50 --evaluate-every 2 --patience 1 "
    "--learning-rate 1e-12 --json"
)


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch trains in one process only")
def test_two_processes_stop_together_and_one_speaks(tmp_path: Path) -> None:
    data, out = tmp_path / "pairs.jsonl", tmp_path / "ckpt"
    data.write_text("".join(json.dumps({"query": q, "positive": d}) + "\n" for q, d in pairs()))
    env = {"PYTHONPATH": os.pathsep.join(sys.path), "PALMETTE_CACHE": str(tmp_path / "cache")}
    env |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *WORDS.format(data=data, out=out).split()],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)  # one object, nothing else
    assert made["steps"] < 50
    assert load_model(out, device="cpu").fingerprint == made["fingerprint"]
    log = (tmp_path / "ckpt.training" / "training.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in log] == list(range(0, made["steps"] + 1, 2))


def test_one_named_gpu_is_not_for_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def there(device: str) -> torch.device:  # a machine with GPUs, of which this process has the first
        return torch.device("cuda:0" if device == "cuda" else device)

    monkeypatch.setattr("palmette.machine.devices.check_device", there)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="each takes its own"):
        train(Quadratic(), TrainingConfig(steps=1, batch_size=4), device="cuda:1")
