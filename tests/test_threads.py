"""Blocking work in threads, seen from a loop."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import subprocess
import sys
import threading
import warnings

import pytest

from palmette import FakeEncoder
from palmette.machine.progress import progress_bar
from palmette.machine.threads import WORKERS, AsyncTwin, run_in_thread

WHO = contextvars.ContextVar("who", default="nobody")


async def test_arguments_results_and_errors_pass_through():
    assert await run_in_thread(divmod, 17, 5) == (3, 2)
    assert await run_in_thread(sorted, [3, 1], reverse=True) == [3, 1]
    with pytest.raises(ZeroDivisionError):
        await run_in_thread(divmod, 1, 0)


async def test_it_runs_elsewhere_with_the_callers_context():
    WHO.set("caller")

    def work() -> tuple[str, bool]:
        seen = WHO.get(), threading.current_thread() is threading.main_thread()
        WHO.set("worker")
        return seen

    assert await run_in_thread(work) == ("caller", False)
    assert WHO.get() == "caller"


async def test_as_many_run_at_once_as_promised():
    together = threading.Barrier(WORKERS)
    await asyncio.gather(*(run_in_thread(together.wait, 30) for _ in range(WORKERS)))
    assert not together.broken


async def test_a_cancelled_call_ends_unheard_and_the_pool_goes_on():
    began, go, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        assert go.wait(30)
        done.set()
        raise RuntimeError("nobody listens")

    task = asyncio.create_task(run_in_thread(work))
    await run_in_thread(began.wait, 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go.set()
    assert await run_in_thread(done.wait, 30)


async def test_stop_iteration_does_not_hang():
    with pytest.raises(RuntimeError, match="StopIteration"):
        await asyncio.wait_for(run_in_thread(next, iter(())), 30)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_each_loop_may_use_it_and_a_forked_child_has_a_pool_of_its_own():
    for text in ("warm", "hot"):
        assert asyncio.run(run_in_thread(len, text)) == len(text)
    child = os.fork()
    if child == 0:
        os._exit(asyncio.run(run_in_thread(len, "abc")))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_forked_while_a_thread_encodes_can_encode():
    begun, go = threading.Event(), threading.Event()

    class Slow(FakeEncoder):
        def forward(self, *given):
            begun.set()
            assert go.wait(30)
            return super().forward(*given)

    encoder = Slow(8)
    threads = [threading.Thread(target=encode, args=(["a"],)) for encode in (encoder.encode, encoder.encode_queries)]
    for thread in threads:
        thread.start()
    assert begun.wait(30)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        go.set()
        os._exit(len(encoder.encode(["a"])) + len(encoder.encode_queries(["a", "b"])))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    go.set()
    for thread in threads:
        thread.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_waits_for_no_threads_of_its_parent():
    """OpenMP's threads stay with the parent, and a child that asks for them would wait for ever."""
    script = """
import os, signal, faiss, numpy, torch
import palmette.machine.threads
torch.set_num_threads(4)
faiss.omp_set_num_threads(4)
vectors, found = torch.randn(2000, 2000), faiss.IndexFlatL2(64)
found.add(numpy.ones((20_000, 64), "f4"))
work = [lambda: vectors.exp().sum(), lambda: found.search(numpy.ones((500, 64), "f4"), 5)]
for one in work:
    one()
for one in work:
    if not (child := os.fork()):
        signal.alarm(60)
        one()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)


async def test_an_async_twin_calls_the_method_of_the_object():
    class Base:
        def ask(self, text: str, *, loud: bool = False) -> str:
            """Ask."""
            return text.upper() if loud else text

        aask = AsyncTwin(ask).method

    class Child(Base):
        def ask(self, text: str, *, loud: bool = False) -> str:
            return f"child {super().ask(text, loud=loud)}"

    assert await Base().aask("a", loud=True) == "A"
    assert await Child().aask("a") == "child a"
    assert asyncio.iscoroutinefunction(Base.aask)
    assert Base.aask.__doc__ == "Ask."


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_killed_while_it_draws_stops_nobody() -> None:
    """A forked child that dies with the lock of its bars leaves those of its parent and of other children usable."""
    list(progress_bar(False, range(3)))
    locked, lock_taken = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a fork while other threads run
        child = os.fork()
    if child == 0:
        type(progress_bar(False)).get_lock().acquire()
        os.write(lock_taken, b"x")
        signal.pause()
    os.read(locked, 1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    other = threading.Thread(target=lambda: list(progress_bar(False, range(3))), daemon=True)
    other.start()
    other.join(10)
    assert not other.is_alive()


@pytest.mark.parametrize("progress", [True, False, None])
def test_a_bar_is_shown_where_it_is_asked_for(progress: bool | None, capsys: pytest.CaptureFixture[str]) -> None:
    """Shown, hidden, or shown on terminals only; items pass in every case."""
    assert list(progress_bar(progress, range(5), desc="counting")) == list(range(5))
    assert ("counting" in capsys.readouterr().err) == (progress is True)
