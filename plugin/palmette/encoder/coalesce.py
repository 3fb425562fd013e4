"""A lock that lets waiting queries in between, and one pass for queries that arrive together."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from palmette.arrays import Floats
from palmette.machine.threads import Renewed


class FairLock(Renewed):
    """A lock that a busy loop cannot keep: a waiting thread gets it before the loop takes it again.

    A query must get in between two batches of a long encoding, which a plain lock does not promise.
    """

    def renew(self) -> None:  # noqa: D102
        self._door = threading.Lock()  # held by the thread that is next
        self._turn = threading.Lock()

    def __enter__(self) -> None:
        with self._door:
            self._turn.acquire()

    def __exit__(self, *_: object) -> None:
        self._turn.release()


@dataclass(eq=False)
class _Call:
    """Texts of one caller; after a failed shared pass it runs ``alone``, and meets its own error."""

    texts: Sequence[str]
    rows: Floats | None = None
    alone: bool = False


class Coalescer(Renewed):
    """Leader and followers around one function, without a thread of its own and without waiting for company.

    A caller that finds the function idle runs everything queued, its own texts among them. Callers that arrive
    meanwhile queue up, and one of them leads the next pass. So a single caller never waits, and under load a
    pass serves up to ``max_texts`` texts.
    """

    def __init__(self, max_texts: int = 64) -> None:
        self._max_texts = max_texts
        super().__init__()

    def renew(self) -> None:  # noqa: D102
        self._queue: deque[_Call] = deque()
        self._changed = threading.Condition()
        self._busy = False

    def __call__(self, texts: Sequence[str], run: Callable[[list[str]], Floats]) -> Floats:
        """Return the rows of ``run(texts)``; one caller's ``run`` serves others too, unless its texts are too many."""
        return self._run_together(_Call(texts), run) if 0 < len(texts) <= self._max_texts else run(list(texts))

    def _run_together(self, call: _Call, run: Callable[[list[str]], Floats]) -> Floats:
        """Lead a pass, or wait for the pass of another caller."""
        with self._changed:
            self._queue.append(call)
        while True:
            with self._changed:
                while self._busy and not call.alone and call.rows is None:
                    self._changed.wait()
                if call.rows is not None:
                    return call.rows
                if call.alone:
                    break
                self._busy = True
                batch = [self._queue.popleft()]  # the oldest, and as many more as fit
                gathered = list(batch[0].texts)
                while self._queue and len(gathered) + len(self._queue[0].texts) <= self._max_texts:
                    batch.append(self._queue.popleft())
                    gathered += batch[-1].texts
            try:
                rows = run(gathered)
                for each in batch:
                    each.rows, rows = rows[: len(each.texts)], rows[len(each.texts) :]
            except Exception:  # it belongs to one of the callers, and must not reach the others
                if batch == [call]:
                    raise
            finally:
                with self._changed:
                    for each in batch:
                        each.alone = each.rows is None
                    self._busy = False
                    self._changed.notify_all()
        return run(list(call.texts))
