"""Moved."""  # moved: delete after the merge

from palmette.encoder.cache import CachedEncoder, CacheEntry, EncodingCache, default_cache_dir

__all__ = ["CacheEntry", "CachedEncoder", "EncodingCache", "default_cache_dir"]
