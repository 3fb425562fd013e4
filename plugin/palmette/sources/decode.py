"""Characters of a text of unknown encoding."""

from __future__ import annotations

import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE, BOM_UTF32_LE
from contextlib import suppress

from palmette.errors import InputError

_PROBED = 65_536  # bytes of a file in which a zero says that it holds no text
_DECLARED = re.compile(rb"(?:charset|coding|encoding)\s*[=:]\s*[\"']?\s*([-\w.]{2,40})")
_BOMS = (  # the longer ones first: UTF-32's begins as UTF-16's
    (BOM_UTF32_LE, "utf-32"),
    (BOM_UTF32_BE, "utf-32"),
    (BOM_UTF8, "utf-8-sig"),
    (BOM_UTF16_LE, "utf-16"),
    (BOM_UTF16_BE, "utf-16"),
)


def decode(data: bytes) -> str:
    """Return the characters of a text, whose encoding is guessed where it is not UTF-8."""
    # 1. As its first bytes say, or UTF-8.
    for mark, name in _BOMS:
        if data.startswith(mark):
            return data.decode(name)
    with suppress(UnicodeDecodeError):
        if b"\0" not in data[:_PROBED]:
            return data.decode("utf-8")
    # 2. With zero bytes it is UTF-16, or no text.
    zeros = [data[start:_PROBED:2].count(0) for start in (0, 1)]
    if any(zeros):
        if max(zeros) > len(data[:_PROBED]) / 4 and not min(zeros):  # UTF-16 of mostly European letters
            return data.decode("utf-16-be" if zeros[0] else "utf-16-le")
        raise InputError("it holds zero bytes: not a text")
    # 3. As it says of itself, else as its letters look.
    if declared := _DECLARED.search(data[:2048]):
        with suppress(LookupError, UnicodeDecodeError):
            return data.decode(declared[1].decode("ascii", "replace").lower())
    from charset_normalizer import from_bytes

    best = from_bytes(data[:1_000_000]).best()
    if best is None:
        raise InputError("its bytes are no text in any encoding that is known")
    try:
        return data.decode(best.encoding)
    except UnicodeDecodeError as error:
        raise InputError(f"it looks like {best.encoding} and is not ({error})") from error
