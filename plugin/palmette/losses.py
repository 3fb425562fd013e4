"""Former names."""  # moved: delete after the merge

from palmette.maths import distillation as distillation
from palmette.maths import ntvd as ntvd
