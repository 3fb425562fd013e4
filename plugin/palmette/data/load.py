"""Former names."""  # moved: delete after the merge

from palmette.data import from_documents

__all__ = ["from_documents"]
