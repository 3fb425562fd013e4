"""Nearest neighbours in stored arrays: plans, exact kernels and FAISS."""

from palmette.machine.threads import get_threads, set_threads

__all__ = ["get_threads", "set_threads"]
