"""Finished measurements as JSON lines, and the parts of the pages that are written from them.

A store is a ``.jsonl`` file beside a page. A benchmark skips what its store holds already, so a run that was broken off
goes on. A page keeps what a person wrote; between ``<!-- NAME -->`` and ``<!-- end of NAME -->`` it is written anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Line = dict[str, Any]


def read(store: Path, *keys: str) -> list[Line]:
    """All lines; of several with equal values of ``keys`` the last one."""
    text = store.read_text("utf-8") if store.exists() else ""
    lines = [json.loads(line) for line in text.splitlines() if line.strip()]
    if not keys:
        return lines
    return list({tuple(str(line.get(key)) for key in keys): line for line in lines}.values())


def append(store: Path, line: Line) -> Line:
    """Add a line at once, so that nothing finished is lost and several runs may write to one file."""
    store.parent.mkdir(parents=True, exist_ok=True)
    with store.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, separators=(",", ":")) + "\n")
    return line


def find(store: Path, **key: Any) -> Line | None:
    """The last line with these values."""
    given = json.loads(json.dumps(key))  # as they read when stored
    return next((x for x in reversed(read(store)) if all(x.get(k) == v for k, v in given.items())), None)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; numbers to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" if line[0] != "---" else f"|{'|'.join(line)}|" for line in lines)


def write_part(page: Path, name: str, text: str) -> None:
    """Replace a part of a page, or add it at the end where the page has none of that name."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    old = page.read_text("utf-8") if page.exists() else ""
    head, found, rest = old.partition(begin)
    after = rest.partition(end)[2] if found else "\n"
    head = head if found or not old else f"{head.rstrip()}\n\n"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(f"{head}{begin}\n\n{text.strip()}\n\n{end}{after}", encoding="utf-8")
