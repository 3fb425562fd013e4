"""Former names."""  # moved: delete after the merge

from palmette.maths import distillation, ntvd
from palmette.maths import symmetric_info_nce as info_nce

__all__ = ["distillation", "info_nce", "ntvd"]
