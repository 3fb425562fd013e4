"""Recognises paths that name a collection, without importing the client."""

from __future__ import annotations


def is_url(path: object) -> bool:
    """Return whether a path names a collection: of a server, or (``qdrant+…``) one that this process holds itself."""
    scheme = path.partition("://")[0] if isinstance(path, str) and "://" in path else ""
    return scheme in ("qdrant", "qdrants") or scheme.startswith("qdrant+")
