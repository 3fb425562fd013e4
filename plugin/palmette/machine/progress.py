"""Progress bars."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from threading import RLock
from typing import Any


def progress_bar(progress: bool | None, items: Iterable[Any] | None = None, **options: Any) -> Any:
    """Create a tqdm bar: ``True`` shows it, ``False`` hides it, and ``None`` shows it on a terminal."""
    return _bar_class()(items, disable=None if progress is None else not progress, **options)


@cache
def _bar_class() -> Any:
    """Return tqdm with a lock that belongs to this process.

    Forked processes share tqdm's own lock: if one is killed while it holds the lock, the others would wait for ever.
    """
    from tqdm.auto import tqdm

    bar_class: Any = type("ProgressBar", (tqdm,), {})
    bar_class.set_lock(RLock())
    if hasattr(os, "register_at_fork"):  # another thread may hold the lock at that moment
        os.register_at_fork(after_in_child=lambda: bar_class.set_lock(RLock()))
    return bar_class
