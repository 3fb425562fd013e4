"""Numbers of threads for searches."""

from collections.abc import Iterator
from contextlib import contextmanager

from palmette.machine.threads import set_threads


@contextmanager
def search_threads(count: int) -> Iterator[None]:
    """Let searches use ``count`` threads, and the default number again afterwards."""
    set_threads(count)
    try:
        yield
    finally:
        set_threads(None)
