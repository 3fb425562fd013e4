"""Former place of ``store/backend.py``."""

from palmette.store.backend import FilteredBackend as NarrowedBackend  # moved: delete after the merge

__all__ = ["NarrowedBackend"]
