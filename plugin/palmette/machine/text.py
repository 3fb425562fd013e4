"""Texts for people."""

from __future__ import annotations

import re
from typing import IO, Any

_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but tab and line feed, changes of the writing direction, and halves of surrogate pairs."""


def printable(text: str) -> str:
    r"""Escape what a terminal would obey or could not show, so that a document's text, id or file name stays a text.

    >>> print(printable("\x1b[2J a.md"))
    \u001b[2J a.md
    """
    return _COMMANDS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


class Printed:
    """A stream for people, in which every text is :func:`printable`; JSON stays JSON."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text."""
        self._stream.write(printable(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


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
