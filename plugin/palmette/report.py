"""Former names."""  # moved: delete after the merge
# ruff: noqa: F401

from palmette.metrics import SHOWN, Report, Row
