"""Exact nearest neighbours in stored arrays: probes, kernels, and the engines that answer with them."""

from palmette.search.threads import get_threads, set_threads

__all__ = ["get_threads", "set_threads"]
