"""Moved."""  # moved: delete after the merge

from palmette.threads import WORKERS as WORKERS
from palmette.threads import run_in_thread as in_thread

__all__ = ["WORKERS", "in_thread"]
