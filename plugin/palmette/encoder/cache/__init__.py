"""Encodings kept on disk: the cache, an encoder that uses it, the database below."""

from palmette.encoder.cache.encoder import CachedEncoder
from palmette.encoder.cache.encodings import EncodingCache, default_cache_dir

__all__ = ["CachedEncoder", "EncodingCache", "default_cache_dir"]
