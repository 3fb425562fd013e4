"""Former names."""  # moved: delete after the merge
# ruff: noqa: F401

from palmette.training.loop import AdamW
