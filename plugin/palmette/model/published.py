"""Moved."""  # moved: delete after the merge

from palmette.hub.checkpointed import Checkpointed as Published

__all__ = ["Published"]
