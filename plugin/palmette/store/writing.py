"""Former place of ``store/writer.py``."""

from palmette.store.writer import LocalWriter  # moved: delete after the merge

__all__ = ["LocalWriter"]
