"""Former names."""  # moved: delete after the merge
# ruff: noqa: F401

from palmette.maths import distillation, ntvd
from palmette.maths import symmetric_info_nce as info_nce
