"""Texts for people."""

from __future__ import annotations


def is_unicode(text: str) -> bool:
    """Tell whether a text can be written as UTF-8: it holds no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def shorten(text: str, limit: int) -> str:
    """Return a text as one line of at most ``limit`` characters; a longer one ends with "…", between words if it can.

    >>> shorten("Owls hunt at night.", 12)
    'Owls hunt …'
    """
    line = " ".join(text.split())
    if len(line) <= limit:
        return line
    start = line[: limit - 2]
    return f"{start.rsplit(' ', 1)[0] if ' ' in start[limit // 2 :] else start.rstrip()} …"
