"""What every test runs under: no network, no writing outside temporary folders, few threads."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from support.chromium import Tab
    from support.local_hub import LocalHub

# what tests leave behind lies in one folder, removed at exit; a worker's lies in that of the process that started it
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # pytest's own folders stay, to look at failures
_HOME = Path(tempfile.mkdtemp(prefix="w" if "PYTEST_XDIST_WORKER" in os.environ else "palmette-tests-"))
atexit.register(shutil.rmtree, _HOME, ignore_errors=True)
tempfile.tempdir = str(_HOME)
os.environ.update(
    TMPDIR=str(_HOME),
    HF_HOME=str(_HOME / "hf"),
    PALMETTE_CACHE=str(_HOME / "cache"),
    HF_HUB_DISABLE_TELEMETRY="1",
    HF_HUB_DISABLE_PROGRESS_BARS="1",
    HF_HUB_DISABLE_XET="1",
    TOKENIZERS_PARALLELISM="false",
)
os.environ.setdefault("OMP_NUM_THREADS", "1")
if not os.environ.get("PALMETTE_TEST_GPU"):  # a machine with a GPU gives the figures of one without
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, and so would programs

settings.register_profile("palmette", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("palmette")  # no timed assertions; the same examples on every machine


@pytest.fixture(autouse=True, scope="session")
def _same_precision() -> Iterator[None]:
    """Real encoders compute in float32, whatever this CPU can do, in fixtures of every scope."""
    from palmette.machine import devices

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "cpu_has_bfloat16", lambda: False)
        yield


@pytest.fixture(autouse=True, scope="session")
def _short_space() -> Iterator[None]:
    """Few steps of what labelled pairs teach ahead: some dozens of texts need no more."""
    from palmette.machine.devices import has_torch

    if not has_torch():
        yield
        return
    from palmette.training import space

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(space, "LEAST_STEPS", 10)
        yield


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    """A Hub of one's own on this machine, empty, where the user is logged in."""
    from support.local_hub import TOKEN, LocalHub

    with LocalHub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[Tab]:
    from support.chromium import Tab

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, closing(Tab(folder)) as tab:
        yield tab


@pytest.fixture
def tab(browser: Tab) -> Iterator[Tab]:
    """A browser's tab, whose page must complain of nothing, and run nothing of a hostile text."""
    browser.goto("about:blank#")  # the page of the test before may still look for its service
    browser.errors.clear()
    yield browser
    assert browser.errors == []
    assert browser.evaluate("typeof hurt") == "undefined"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Notebooks first: they take longest, and a process that met them last would end alone."""
    items.sort(key=lambda item: "notebooks" not in item.path.parts)


def pytest_sessionfinish() -> None:
    import shutil

    shutil.rmtree(_HOME, ignore_errors=True)
