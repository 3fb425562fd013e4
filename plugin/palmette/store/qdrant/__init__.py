"""A Qdrant collection as the storage of an index; `backend.py` has its commit, visibility and lease."""
