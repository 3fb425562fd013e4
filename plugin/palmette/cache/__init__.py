"""Encodings kept on disk, so that a text meets an encoder once.

cache.py    EncodingCache: pooled vectors and token states by encoder and text
encoder.py  CachedEncoder: an encoder in front of a cache
files.py    what lies on disk: drawers of append-only shards, checked and locked
"""

from palmette.cache.cache import CacheEntry, EncodingCache, default_cache_dir
from palmette.cache.encoder import CachedEncoder

__all__ = ["CacheEntry", "CachedEncoder", "EncodingCache", "default_cache_dir"]
