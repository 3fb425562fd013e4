"""A Qdrant collection as the storage of an index. ``state.py`` describes commits, visibility and the lease."""
