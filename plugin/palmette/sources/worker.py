"""A process of its own that converts strangers' files, so that its crash, hunger or endless loop costs one file.

The parent (:class:`Worker`) starts this file as a program, ``python -m palmette.sources.worker``. Each request is one
line of JSON on the program's standard input, each reply one on its standard output:

    {"suffix": ".pdf", "path": …, "root": …, "seconds": 25, "memory": 268435456}   →   {"text": …, "title": …, …}
    {"page": "<html>…", …}                                                         →   {"error": "cannot be read (…)"}
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from math import ceil
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, BinaryIO

from palmette.errors import InputError
from palmette.machine.files import open_source
from palmette.sources.pages import html_to_markdown
from palmette.sources.strangers import Converted, converter, reason_of
from palmette.types import LONGEST_DOCUMENT

CONVERSION_BYTES = 2**28
"""Bytes that a conversion may take beyond the libraries."""
CPU_SECONDS = 5
"""Processor time of a conversion of a small file."""
CPU_SECONDS_PER_MEGABYTE = 20
"""Processor time that a larger file adds."""
MOST_CPU_SECONDS = 300
"""Largest processor time of a conversion."""
FILES_PER_PROCESS = 200
"""Number of files after which a new process takes over."""
IDLE_SECONDS = 60.0
"""Seconds after which a process without work ends."""
_GRACE_SECONDS = 60.0
"""Seconds to wait beyond four times the processor time: for the start of the process, and for other programs."""
_LONGEST_REPLY = 16 * LONGEST_DOCUMENT
"""Bytes of a reply, in which a character takes up to twelve."""


# -- in the parent ------------------------------------------------------------------------------------------


class Worker:
    """The process, started for the first file; a thread that wants to convert waits for the others."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None

    def convert(self, size: int, **request: Any) -> Converted:
        """Convert a file of ``size`` bytes; what goes wrong, and the end of the process, raise InputError."""
        seconds = min(MOST_CPU_SECONDS, CPU_SECONDS + CPU_SECONDS_PER_MEGABYTE * size // 10**6)  # of processor time
        line = json.dumps({**request, "seconds": seconds, "memory": CONVERSION_BYTES}).encode() + b"\n"
        with self.lock:  # by the clock it may take four times as long, beside other programs
            reply, ended = self._ask(line, 4 * seconds + _GRACE_SECONDS)
            if not reply and ended == 0:  # it had nothing to do for a while, or had converted enough
                reply, ended = self._ask(line, 4 * seconds + _GRACE_SECONDS)
        if not reply:
            raise InputError(f"cannot be read ({_reason_of_end(ended, seconds)})")
        answer = json.loads(reply)
        if "error" in answer:
            raise InputError(answer["error"])
        return Converted(**answer)

    def _ask(self, line: bytes, seconds: float) -> tuple[bytes, int]:
        """Send a request; returns the reply, or nothing and the exit status of the process."""
        if self.process is not None and self.process.poll() is not None:  # somebody ended it meanwhile
            self.close()
        process = self.process = self.process or _start()
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(seconds, process.kill)
        timer.daemon = True
        timer.start()
        try:
            with suppress(BrokenPipeError):
                process.stdin.write(line)
                process.stdin.flush()
            reply = process.stdout.readline(_LONGEST_REPLY)
            if reply.endswith(b"\n"):
                return reply, 0
        except BaseException:  # also an interrupt: the reply would be taken for that of the next request
            self.close()
            raise
        finally:
            timer.cancel()
        return b"", self.close()

    def close(self) -> int:
        """End the process, and return its exit status."""
        process, self.process = self.process, None
        if process is None:
            return 0
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(OSError):
            process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.kill()
        process.stdout.close()
        return process.wait()


def _start() -> subprocess.Popen[bytes]:
    """Start the process with the modules that this one finds, not with those of the working folder."""
    here, places = str(Path(__file__).parents[2]), [path for path in sys.path if Path(path).is_absolute()]
    places = places if here in places else [here, *places]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places), "PYTHONUTF8": "1"}
    environment |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONWARNINGS", None)
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "palmette.sources.worker"], env=environment, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip


def _reason_of_end(status: int, seconds: int) -> str:
    """Say why the process ended, by its exit status."""
    if status == -getattr(signal, "SIGXCPU", 0):
        return f"it takes more than {seconds} s of processor time"
    if status == -getattr(signal, "SIGKILL", 0):
        return f"it takes more than {int(4 * seconds + _GRACE_SECONDS)} s, or all memory of this machine"
    if status < 0:
        return f"its converter crashes: {signal.Signals(-status).name}"
    return f"its converter ends with status {status}"


WORKER = Worker()
"""The worker of this process."""
atexit.register(WORKER.close)


def _after_fork() -> None:
    """Leave the process to the parent: close the child's ends of its pipes, and begin without one."""
    process, WORKER.process, WORKER.lock = WORKER.process, None, threading.Lock()
    if process is not None:
        process.returncode = 0  # its end is the parent's to wait for
        for pipe in (process.stdin, process.stdout):
            pipe.raw.close()  # type: ignore[union-attr]  # another thread may hold the lock of the buffer


# -- in the process of its own ------------------------------------------------------------------------------


class _Limits:
    """Limits of memory and processor time, where the system has them.

    A conversion may take ``memory`` bytes beyond ``base``: the memory of the process before its first conversion, and
    what later imports added. ``before`` is the memory before the imports of the current conversion. What earlier
    conversions left behind counts against the next.
    """

    def __init__(self) -> None:
        self.base, self.before, self.memory, self.exceeded = 0, _data_bytes(), CONVERSION_BYTES, False

    def converting(self, seconds: int, memory: int) -> None:
        """Limit the conversion that follows, now that its library is imported."""
        self.memory = memory
        self.base = self.base + _data_bytes() - self.before if self.base else _data_bytes()
        with suppress(ImportError, ValueError, OSError):
            import resource

            used = resource.getrusage(resource.RUSAGE_SELF)
            spent = ceil(used.ru_utime + used.ru_stime)
            resource.setrlimit(resource.RLIMIT_CPU, (spent + seconds, resource.RLIM_INFINITY))
            if _data_bytes():
                resource.setrlimit(resource.RLIMIT_DATA, (self.base + memory, resource.RLIM_INFINITY))


def _data_bytes() -> int:
    """Bytes that this process has of its own, as Linux counts them for its limit; 0 elsewhere."""
    with suppress(OSError, ValueError, StopIteration), Path("/proc/self/status").open() as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmData"))
    return 0


def _convert(request: dict[str, Any], limits: _Limits) -> Converted:
    """Convert what a request names: a page that it holds, or a file."""
    limits.before = _data_bytes()  # what the imports below add is no part of the conversion
    convert = None if "page" in request else converter(request["suffix"])
    if convert is None:
        import markdownify  # noqa: F401
    limits.converting(request["seconds"], request["memory"])
    if convert is None:
        return Converted(*html_to_markdown(request["page"]))
    root = request["root"]
    with open_source(Path(request["path"]), None if root is None else Path(root)) as file:
        return convert(file)


def _reply(line: bytes, limits: _Limits) -> dict[str, Any]:
    try:
        found = _convert(json.loads(line), limits)
        return found._asdict() | {"title": found.title and str(found.title)}
    except MemoryError:
        limits.exceeded = True
        return {"error": f"cannot be read (it takes more than {limits.memory >> 20} MiB of memory)"}
    except InputError as error:
        return {"error": str(error)}
    except Exception as error:
        return {"error": f"cannot be read ({reason_of(error)})"}


def _listen(requests: SimpleQueue[bytes]) -> None:
    """Pass requests on until the parent closes the pipe, or ends."""
    for line in sys.stdin.buffer:
        requests.put(line)
    os._exit(0)


def main() -> None:
    """Reply to one request after another; end after ``FILES_PER_PROCESS``, without work, or with the parent.

    The parent starts a new process for the next file, so whatever libraries leak or break ends with this one.
    """
    import warnings

    # 1. Ctrl-C is the parent's to handle. Replies get a copy of standard output, which itself becomes standard error.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore")  # of libraries, about files of others
    replies: BinaryIO = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no reply
    # 2. No core dumps; a thread reads requests, and ends the process at once when the parent closes the pipe.
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    requests, limits = SimpleQueue[bytes](), _Limits()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()
    # 3. Convert file after file.
    for _ in range(FILES_PER_PROCESS):
        try:
            line = requests.get(timeout=IDLE_SECONDS)
        except Empty:
            break
        replies.write(json.dumps(_reply(line, limits)).encode() + b"\n")
        replies.flush()
        # End if the last conversion ran out of memory, or left more than a quarter of its allowance behind.
        if limits.exceeded or _data_bytes() > limits.base + limits.memory // 4:
            break
    os._exit(0)


if __name__ == "__main__":
    main()
elif hasattr(os, "register_at_fork"):  # imported by the parent, which may fork
    os.register_at_fork(after_in_child=_after_fork)
