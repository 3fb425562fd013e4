"""System calls of a forked child, met one by one: let through, failed, torn, or the child's last.

Linux hands the calls of a process to a supervisor (seccomp's user notification), so that a kill or an error strikes
exactly where it is meant to: in SQLite, NumPy and Python alike, without a build of anything.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import select
import signal
import socket
import struct
import time
import traceback
from collections.abc import Callable
from pathlib import Path

KILL, TORN, SHORT = -1, -2, -3
"""Verdicts beside 0 (let it through) and an errno: kill before the call; half a write, then kill; half a write."""

_X86 = "read 0 write 1 open 2 pread64 17 pwrite64 18 fsync 74 fdatasync 75 ftruncate 77 rename 82 mkdir 83 rmdir 84 "
_X86 += "unlink 87 openat 257 mkdirat 258 unlinkat 263 renameat 264 fallocate 285 renameat2 316"
_ARM = "mkdirat 34 unlinkat 35 renameat 38 ftruncate 46 fallocate 47 openat 56 read 63 write 64 pread64 67 "
_ARM += "pwrite64 68 fsync 82 fdatasync 83 renameat2 276"
_WORDS = {"x86_64": _X86, "aarch64": _ARM}.get(platform.machine(), "").split()
CALLS = dict(zip(_WORDS[::2], map(int, _WORDS[1::2]), strict=True))
READS = ("read", "pread64", "open", "openat")
_SECCOMP = {"x86_64": 317, "aarch64": 277}.get(platform.machine(), 0)
_RECEIVE, _SEND = 0xC0502100, 0xC0182101


def is_possible() -> bool:
    """Whether this kernel lets a process supervise its children so."""
    try:
        return bool(CALLS) and watch(lambda: os._exit(7), Path("/"), lambda *_: 0) == 7 << 8
    except OSError:
        return False


def watch(work: Callable[[], object], folder: Path, decide: Callable[[int, str], int], *, reads: bool = False) -> int:
    """Run ``work`` in a forked child, and let ``decide`` judge every call on a path in ``folder``; its wait status.

    ``decide`` is given the number of the call, from 0, and its name. Reads and openings are met only with ``reads``.
    """
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            socket.send_fds(theirs, [b"x"], [_install([n for c, n in CALLS.items() if reads or c not in READS])])
            ours.close(), theirs.close()
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    theirs.close()
    try:
        received = socket.recv_fds(ours, 1, 1)[1]
        if received:
            _supervise(pid, received[0], str(folder), decide)
            os.close(received[0])
    finally:
        ours.close()
        status = os.waitpid(pid, 0)[1]
    if not received:
        raise OSError(errno.ENOSYS, "no user notification of seccomp here")
    return status


def _install(numbers: list[int]) -> int:
    """Hand these calls of this thread, and of those it starts, to whoever holds the descriptor returned."""
    rules = [(0x20, 0, 0, 0)]  # load the number
    rules += [(0x15, len(numbers) - place, 0, number) for place, number in enumerate(numbers)]
    rules += [(0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x7FC00000)]  # allow; notify
    packed = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(rules), ctypes.addressof(packed)))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(38, 1, 0, 0, 0)  # no new privileges
    descriptor = int(libc.syscall(_SECCOMP, 1, 8, program))
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    return descriptor


def _supervise(pid: int, listener: int, folder: str, decide: Callable[[int, str], int]) -> None:
    names, count, poll = {number: name for name, number in CALLS.items()}, 0, select.poll()
    poll.register(listener, select.POLLIN)
    end = time.monotonic() + 120
    while True:
        [(_, event)] = poll.poll(120_000) or [(0, select.POLLHUP)]
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
        if event & select.POLLHUP:
            return
        request = bytearray(80)
        try:
            fcntl.ioctl(listener, _RECEIVE, request)
        except OSError:  # the child has died meanwhile
            continue
        id, thread, _, number, _, _, *given = struct.unpack("QIIiIQ6Q", request)
        verdict = 0
        if _path(thread, names[number], given).startswith(folder):
            verdict, count = decide(count, names[number]), count + 1
        value = 0
        if verdict in (TORN, SHORT):
            value = _write_half(thread, names[number], given)
        if verdict in (KILL, TORN):
            os.kill(pid, signal.SIGKILL)
            continue
        passes = verdict == 0 or (verdict == SHORT and not value)
        answer = struct.pack("QqiI", id, value, -max(verdict, 0), int(passes))
        try:
            fcntl.ioctl(listener, _SEND, answer)
        except OSError:
            continue


def _path(thread: int, name: str, given: list[int]) -> str:
    try:
        if name in ("read", "write", "pread64", "pwrite64", "fsync", "fdatasync", "ftruncate", "fallocate"):
            return str(Path(f"/proc/{thread}/fd/{given[0]}").readlink())
        at = name.endswith(("at", "at2"))
        with Path(f"/proc/{thread}/mem").open("rb", 0) as memory:
            memory.seek(given[1 if at else 0])
            text = memory.read(1024).split(b"\0")[0].decode()
        if at and not text.startswith("/") and given[0] < 1 << 31:
            return f"{Path(f'/proc/{thread}/fd/{given[0]}').readlink()}/{text}"
        return text
    except (OSError, UnicodeDecodeError):
        return ""


def _write_half(thread: int, name: str, given: list[int]) -> int:
    """Write half of what a write is about to, as a full disk or a kill would leave it; 0 for other calls."""
    half = given[2] // 2
    if name not in ("write", "pwrite64") or not half:
        return 0
    with Path(f"/proc/{thread}/mem").open("rb", 0) as memory:
        memory.seek(given[1])
        content = memory.read(half)
    place = given[3]
    if name == "write":
        place = int(Path(f"/proc/{thread}/fdinfo/{given[0]}").read_text().split()[1])
    descriptor = os.open(f"/proc/{thread}/fd/{given[0]}", os.O_WRONLY)
    os.pwrite(descriptor, content, place)
    if name == "write":  # the offset belongs to the child's own opening of the file: let the kernel repeat it
        os.close(descriptor)
        return 0
    os.close(descriptor)
    return half
