"""Moved."""  # moved: delete after the merge

from palmette.devices import auto_precision, check_device

__all__ = ["auto_precision", "check_device"]
