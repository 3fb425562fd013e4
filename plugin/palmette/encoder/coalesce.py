"""Moved."""  # moved: delete after the merge

from palmette.encoder.base import Coalescer, FairLock

__all__ = ["Coalescer", "FairLock"]
