"""How many threads compute, and how they wait for one another."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from palmette import load_encoder
from palmette.machine.cores import prepare_environment, quota, usable_cores
from support.tiny_encoder import save_tiny_encoder

CHOSEN = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "MKL_DISABLE_FAST_MM")
"""Variables that palmette sets where nobody did."""


def root_with(folder: Path, lines: str, files: dict[str, str]) -> Path:
    """A file system in which this process has control groups."""
    for name, text in {"proc/self/cgroup": lines, **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("lines", "files", "cores"),
    [
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        ("0::/a/b\n", {"sys/fs/cgroup/a/b/cpu.max": "max 100000\n", "sys/fs/cgroup/a/cpu.max": "50000 100000"}, 0.5),
        ("0::/of/the/host\n", {"sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2.0),
        (
            "4:cpu,cpuacct:/docker/x\n3:memory:/docker/x\n",
            {
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "100000\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "50000\n",
            },
            2.0,
        ),
        (
            "4:cpu:/\n",
            {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"},
            math.inf,
        ),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "nonsense\n"}, math.inf),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "100000 0\n"}, math.inf),
        ("no group at all\n", {}, math.inf),
    ],
)
def test_quota(tmp_path, lines, files, cores):
    assert quota(root_with(tmp_path, lines, files)) == cores


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="affinity is Linux's")
def test_cores_follow_the_affinity():
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert 1 <= usable_cores() <= len(allowed)


def threads_of(code: str, **environment: str) -> str:
    """What a new process prints."""
    inherited = {name: value for name, value in os.environ.items() if name not in CHOSEN}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=inherited | environment, capture_output=True, text=True, check=True).stdout


def test_waiting_threads_sleep_unless_the_user_chose_otherwise():
    show = "import os, palmette; print(os.environ.get('OMP_WAIT_POLICY'))"
    assert threads_of(show) == "PASSIVE\n"
    assert threads_of(show, OMP_WAIT_POLICY="ACTIVE") == "ACTIVE\n"
    assert threads_of(show, GOMP_SPINCOUNT="100") == "None\n"


def test_threads_keep_no_buffers_unless_the_user_chose_otherwise():
    show = "import os, palmette; print(os.environ.get('MKL_DISABLE_FAST_MM'))"
    assert threads_of(show) == "1\n"
    assert threads_of(show, MKL_DISABLE_FAST_MM="0") == "0\n"


def test_after_torch_nothing_is_changed():
    environment = dict[str, str]()
    prepare_environment(environment)  # torch is imported
    assert environment == {}


@pytest.mark.parametrize(("variable", "threads"), [({}, 1), ({"OMP_NUM_THREADS": "2"}, min(2, os.cpu_count() or 1))])
def test_torch_follows_the_quota_and_not_what_the_user_chose(variable, threads):
    code = """
import math, palmette.machine.cores
palmette.machine.cores._quota_of_this_process = lambda: 0.5
import torch
palmette.machine.cores.limit_torch()
print(torch.get_num_threads())
"""
    assert threads_of(code, **variable) == f"{threads}\n"


def test_a_question_takes_one_thread_and_a_long_pass_all(tmp_path):
    encoder = load_encoder(save_tiny_encoder(tmp_path / "encoder"), device="cpu", dtype="float32")
    before, seen = torch.get_num_threads(), list[int]()
    hook = encoder.model[0].register_forward_hook(lambda *_: seen.append(torch.get_num_threads()))
    torch.set_num_threads(2)
    try:
        encoder.encode_queries(["a question of some words"])
        encoder.encode(["a word or two of a document " * 60] * 32)
    finally:
        hook.remove()
        torch.set_num_threads(before)
    assert seen[0] == 1
    assert set(seen[1:]) == {2}
