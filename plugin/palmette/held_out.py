"""Former names."""  # moved: delete after the merge

from palmette.training.pairs import DEV_DOCUMENTS, DEV_QUERIES  # noqa: F401
