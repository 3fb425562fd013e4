"""Callers that come together share a pass, and nothing else."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from palmette.encoder.base import Coalescer, FairLock


class Line:
    """A pass that can be held open, so that others queue behind it."""

    def __init__(self) -> None:
        self.passes: list[list[str]] = []
        self.entered, self.go = threading.Event(), threading.Event()

    def run(self, texts: list[str]) -> np.ndarray:
        self.passes.append(texts)
        if "hold" in texts:
            self.entered.set()
            assert self.go.wait(30)
        if "bad" in texts:
            raise ValueError("bad text")
        return np.array([[float(len(text))] for text in texts], np.float32)


def gather(coalescer: Coalescer, line: Line, calls: list[list[str]]) -> list[object]:
    """Start ``calls`` while a pass is held, let go when all have queued, and return what each got."""
    found: list[object] = [None] * len(calls)

    def ask(i: int) -> None:
        try:
            found[i] = coalescer(calls[i], line.run)
        except ValueError as error:
            found[i] = error

    holder = threading.Thread(target=coalescer, args=(["hold"], line.run))
    holder.start()
    assert line.entered.wait(30)
    threads = []
    for i in range(len(calls)):
        threads.append(threading.Thread(target=ask, args=(i,)))
        threads[-1].start()
        while len(coalescer._queue) < i + 1:
            threads[-1].join(0.001)
    line.go.set()
    for thread in (holder, *threads):
        thread.join(30)
        assert not thread.is_alive()
    return found


def test_what_queues_up_shares_the_next_pass():
    line = Line()
    found = gather(Coalescer(), line, [["a"], ["bb", "ccc"], ["dddd"]])
    assert line.passes == [["hold"], ["a", "bb", "ccc", "dddd"]]
    assert [rows.tolist() for rows in found] == [[[1.0]], [[2.0], [3.0]], [[4.0]]]


def test_a_pass_has_room_for_so_many_texts():
    line = Line()
    found = gather(Coalescer(3), line, [["a"], ["b", "c"], ["d", "e", "f", "g"], ["h"]])
    assert line.passes[1:] == [["a", "b", "c"], ["d", "e", "f", "g"], ["h"]]
    assert [len(rows) for rows in found] == [1, 2, 4, 1]


def test_one_callers_error_is_its_own():
    line = Line()
    found = gather(Coalescer(), line, [["a"], ["bad"], ["ccc"]])
    assert isinstance(found[1], ValueError)
    assert (found[0].tolist(), found[2].tolist()) == ([[1.0]], [[3.0]])


def test_alone_nothing_is_shared_or_repeated():
    line = Line()
    coalescer = Coalescer()
    assert coalescer(["abc"], line.run).tolist() == [[3.0]]
    with pytest.raises(ValueError, match="bad text"):
        coalescer(["bad"], line.run)
    assert line.passes == [["abc"], ["bad"]]
    assert coalescer(["after"], line.run).tolist() == [[5.0]]


def test_an_interrupted_leader_leaves_nobody_waiting():
    line, raised = Line(), threading.Event()

    def interrupted(texts: list[str]) -> np.ndarray:
        if not raised.is_set():
            raised.set()
            raise KeyboardInterrupt
        return line.run(texts)

    coalescer = Coalescer()
    with pytest.raises(KeyboardInterrupt):
        coalescer(["mine"], interrupted)
    assert coalescer(["next"], interrupted).tolist() == [[4.0]]


def test_a_waiting_thread_gets_the_lock_before_a_loop_takes_it_again():
    lock, turns, waiting = FairLock(), [], threading.Event()

    def query() -> None:
        waiting.set()
        with lock:
            turns.append("query")

    thread = threading.Thread(target=query)
    with lock:
        thread.start()
        assert waiting.wait(30)
        while not lock._door.locked():
            thread.join(0.001)
        turns.append("batch 1")
    with lock:
        turns.append("batch 2")
    thread.join(30)
    assert turns == ["batch 1", "query", "batch 2"]
