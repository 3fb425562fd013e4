"""Queries that arrive together share one forward pass."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["Coalescer", "FairLock"]

Floats = NDArray[np.float32]


class FairLock:
    """A lock that a busy loop cannot keep to itself: whoever waits gets it before the loop comes round.

    A query must get in between two batches of a long encoding, which a plain lock does not promise.
    """

    def __init__(self) -> None:
        self._door = threading.Lock()  # held by the one who is next
        self._turn = threading.Lock()

    def __enter__(self) -> None:
        with self._door:
            self._turn.acquire()

    def __exit__(self, *_: object) -> None:
        self._turn.release()


class _Call:
    """One caller's texts on their way through a forward pass."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts
        self.rows: Floats | None = None
        self.alone = False
        """Set after a shared pass failed: the caller then runs its own texts, and meets its own error."""


class Coalescer:
    """Leader and followers around one function: no thread of its own, no waiting for company.

    A caller that finds the function idle runs everything queued, its own texts among them. Callers that come
    while it runs queue up; when it is done, one of them leads the next pass with all that has gathered. So a
    single caller never waits, and under load a pass serves up to ``max_texts`` texts.
    """

    def __init__(self, max_texts: int = 64) -> None:
        self._max_texts = max_texts
        self._queue: deque[_Call] = deque()
        self._changed = threading.Condition()
        self._busy = False

    def __call__(self, texts: Sequence[str], run: Callable[[list[str]], Floats]) -> Floats:
        """The rows of ``run(texts)``, once they are there; one caller's ``run`` serves others too."""
        call = _Call(texts)
        with self._changed:
            self._queue.append(call)
        while True:
            with self._changed:
                while self._busy and call.rows is None and not call.alone:
                    self._changed.wait()
                if call.rows is not None:
                    return call.rows
                if call.alone:
                    break
                self._busy = True
                batch = self._take()
            self._lead(batch, call, run)
        return run(list(call.texts))

    def _take(self) -> list[_Call]:
        """The calls of the next pass, oldest first: at least one, then as many as fit."""
        batch = [self._queue.popleft()]
        count = len(batch[0].texts)
        while self._queue and count + len(self._queue[0].texts) <= self._max_texts:
            batch.append(self._queue.popleft())
            count += len(batch[-1].texts)
        return batch

    def _lead(self, batch: list[_Call], own: _Call, run: Callable[[list[str]], Floats]) -> None:
        """Run one pass; when it fails, every call of it is sent to run alone."""
        try:
            rows = run([text for call in batch for text in call.texts])
            start = 0
            for call in batch:
                call.rows = rows[start : start + len(call.texts)]
                start += len(call.texts)
        except Exception:  # whatever it was: it belongs to one of the callers, and must not reach the others
            if batch == [own]:
                raise
        finally:
            with self._changed:
                for call in batch:
                    call.alone = call.rows is None
                self._busy = False
                self._changed.notify_all()
