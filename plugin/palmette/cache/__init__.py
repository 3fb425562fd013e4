"""Moved."""  # moved: delete after the merge

from palmette.encoder.cache import CachedEncoder, EncodingCache, default_cache_dir

__all__ = ["CachedEncoder", "EncodingCache", "default_cache_dir"]
