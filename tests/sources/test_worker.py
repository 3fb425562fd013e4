"""The process that converts strangers' files: what it costs, its limits, its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from palmette.errors import InputError
from palmette.sources import worker
from palmette.sources.convert import read_file
from palmette.sources.worker import WORKER
from support.odd_files import epub, workbook
from support.stores import environment

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="signals, limits and /proc")
SLOW = "<p>owl</p>" * 45_000
"""A page that takes some seconds."""


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Callable[[str, bytes | str], Path]]:
    def write(name: str, content: bytes | str) -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    WORKER.close()
    yield write
    WORKER.close()


BOOK = epub('<itemref idref="a"/>')


def text(path: Path) -> str:
    return next(iter(read_file(path))).text


def test_one_process_serves_all_files_and_imports_little(write) -> None:
    book = write("a.epub", BOOK)
    assert WORKER.process is None
    results: list[str] = []
    threads = [threading.Thread(target=lambda: results.append(text(book))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == ["# Owls\n\nThey sing."] * 8
    assert WORKER.process is not None
    pid = WORKER.process.pid
    assert text(write("a.xlsx", workbook({"B2": "owl"}))) == "## Sheet\n| owl |\n| --- |"
    assert WORKER.process.pid == pid
    code = "import sys, palmette.sources.worker; print({'torch', 'numpy', 'pandas', 'pydantic'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"set()\n"


@pytest.mark.parametrize(("limit", "value", "reason"), [
    ("CPU_SECONDS", 0, "more than 0 s of processor time"), ("CONVERSION_BYTES", 2**22, "more than 4 MiB of memory"),
])  # fmt: skip
def test_limits_of_time_and_memory(write, monkeypatch: pytest.MonkeyPatch, limit, value, reason) -> None:
    monkeypatch.setattr(worker, "CPU_SECONDS_PER_MEGABYTE", 0)
    monkeypatch.setattr(worker, limit, value)
    with pytest.raises(InputError, match=rf"slow\.html: cannot be read \(it takes {reason}"):
        text(write("slow.html", SLOW))
    monkeypatch.undo()
    assert text(write("a.epub", BOOK)) == "# Owls\n\nThey sing."


def test_a_crash_is_the_failure_of_one_file(write) -> None:
    book, errors = write("a.epub", BOOK), list[Exception]()
    text(book)
    assert WORKER.process is not None
    os.kill(WORKER.process.pid, signal.SIGKILL)  # while it is idle
    WORKER.process.wait()
    assert text(book) == "# Owls\n\nThey sing."

    def convert() -> None:
        try:
            text(write("slow.html", SLOW))
        except InputError as error:
            errors.append(error)

    thread = threading.Thread(target=convert)
    thread.start()
    time.sleep(0.5)
    os.kill(WORKER.process.pid, signal.SIGSEGV)
    assert text(book) == "# Owls\n\nThey sing."
    thread.join()
    assert "slow.html: cannot be read (its converter crashes: SIGSEGV)" in str(errors)


def test_a_process_that_has_worked_enough_is_followed_by_another(write, monkeypatch: pytest.MonkeyPatch) -> None:
    book = write("a.epub", BOOK)
    text(book)
    assert WORKER.process is not None
    first = WORKER.process.pid
    for _ in range(worker.FILES_PER_PROCESS):
        text(book)
    assert WORKER.process.pid != first


def test_a_forked_child_has_a_process_of_its_own(write) -> None:
    book = write("a.epub", BOOK)
    text(book)
    child = os.fork()
    if not child:
        status = 1
        try:
            status = int(text(book) != "# Owls\n\nThey sing.")
            WORKER.close()
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert text(book) == "# Owls\n\nThey sing."


SCRIPT = """
import sys, threading, time
from pathlib import Path
from palmette.sources.convert import read_file
from palmette.sources.worker import WORKER
print(next(iter(read_file(Path("a.epub")))).text[:6], WORKER.process.pid, flush=True)
{rest}
"""
HANG = "print('busy', flush=True); next(iter(read_file(Path('slow.html'))))"


@pytest.mark.parametrize("how", ["exit", "kill", "interrupt"])
def test_it_ends_with_its_parent(write, how: str, tmp_path: Path) -> None:
    """Started from a script that has no main guard and is read from the standard input, in a hostile folder."""
    write("a.epub", BOOK), write("slow.html", SLOW), write("bs4.py", "raise SystemExit('taken from the folder')")
    (tmp_path / "palmette").mkdir()
    script = SCRIPT.format(rest="" if how == "exit" else HANG)
    parent = subprocess.Popen(
        [sys.executable, "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=tmp_path, env=environment() | {"PYTHONSAFEPATH": "1"},
    )  # fmt: skip
    assert parent.stdin is not None
    assert parent.stdout is not None
    with parent:
        parent.stdin.write(script)
        parent.stdin.close()
        words = parent.stdout.readline().split()
        assert words[:2] == ["#", "Owls"]
        pid = int(words[2])
        if how != "exit":
            parent.stdout.readline()
            time.sleep(0.3)
            parent.send_signal(signal.SIGKILL if how == "kill" else signal.SIGINT)
        assert parent.wait(30) == {"exit": 0, "kill": -signal.SIGKILL, "interrupt": -signal.SIGINT}[how]
    until = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]:
        assert time.monotonic() < until, "the process goes on without its parent"
        time.sleep(0.05)
