"""Former names."""  # moved: delete after the merge

from palmette.training.pairs import HardNegatives, TokenRows  # noqa: F401
