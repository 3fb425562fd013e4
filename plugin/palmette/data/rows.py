"""Former names."""  # moved: delete after the merge

from palmette.data.retrieval import RowLists

__all__ = ["RowLists"]
