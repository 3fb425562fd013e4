"""Moved."""  # moved: delete after the merge

from palmette.threads import get_threads, run_in_threads, set_threads

__all__ = ["get_threads", "run_in_threads", "set_threads"]
