"""Read one file as text: its encoding, its title, and the kind that says how it is cut."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from palmette.errors import InputError


@dataclass(frozen=True)
class SourceText:
    """A document of a file, as text.

    Attributes:
        text: What is cut and searched.
        kind: How it is cut: ``markdown``, ``rst``, ``text``, ``code:python`` ….
        title: What the file says that it is called.
        metadata: Further facts that the file states, as JSON values.
        encoding: How its characters were written.
    """

    text: str
    kind: str
    title: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    encoding: str = "utf-8"


def read_file(path: Path) -> Iterator[SourceText]:
    """Yield the documents of a file: one, or one per record of a table or of JSON lines.

    Raises:
        InputError: The file cannot be read; it and the reason are named.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    yield SourceText(text, "markdown" if path.suffix.lower() in (".md", ".markdown") else "text")
