"""Moved."""  # moved: delete after the merge

from palmette.hub.checkpointed import TrainingRecord as Record

__all__ = ["Record"]
