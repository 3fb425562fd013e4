"""Moved."""  # moved: delete after the merge

from palmette.encoder.backbone import set_dropout

__all__ = ["set_dropout"]
