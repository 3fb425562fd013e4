"""Former names."""  # moved: delete after the merge

from palmette.training.loop import AdamW

__all__ = ["AdamW"]
