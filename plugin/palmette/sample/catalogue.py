"""The running Python's standard library as documents: a real, structured catalogue that every machine has."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, TypedDict

from palmette.errors import InputError, NotFoundError
from palmette.types import Document

__all__ = ["COMMON_MODULES", "python_catalogue"]

COMMON_MODULES: tuple[str, ...] = ()
"""What most programs use: the catalogue of size ``"small"``, about 2,000 entries."""

COLLECTOR = Path(__file__).with_name("collect.py")
SENTENCE = re.compile(r"(.+?(?<!e\.g)(?<!i\.e)(?<!etc)(?<!vs)[.!?])(?=\s+[A-Z(\"'`]|\Z)")
SUMMARY_CHARS = 300


class Entry(TypedDict):
    """One line of the collector: see :mod:`palmette.sample.collect`."""

    id: str
    module: str
    parent: str
    kind: Literal["module", "class", "function", "method", "property"]
    signature: str
    doc: str


def python_catalogue(
    modules: Iterable[str] | None = None, *, size: Literal["full", "small"] = "full", max_chars: int = 1000
) -> list[Document]:
    """One document per documented module, class, function, method and property, in the order of their names.

    An entry's id is its shortest public name (``"json.dumps"``, ``"pathlib.Path.glob"``, ``"str.split"``); what is
    re-exported or inherited appears once. The same Python gives the same catalogue. Reading it takes about 1.5
    seconds, in a child interpreter, so that nothing is imported into this process.

    Args:
        modules: Names of modules to keep, with their submodules; by default those of ``size``.
        size: ``"small"`` keeps :data:`COMMON_MODULES`, ``"full"`` everything (about 6,200 entries).
        max_chars: Texts are cut after this many characters; most encoders read no more.
    """
    if size not in ("full", "small"):
        raise InputError(f"size must be 'full' or 'small', got {size!r}")
    wanted = COMMON_MODULES if modules is None and size == "small" else modules
    entries = collect()
    if wanted is not None:
        wanted = {wanted} if isinstance(wanted, str) else set(wanted)
        check_modules(wanted if modules is not None else set(), entries)
        entries = [entry for entry in entries if within(entry["module"], wanted)]
    python = platform.python_version()
    return [document(entry, python, max_chars) for entry in entries]


def collect() -> list[Entry]:
    """Run the collector with this Python, isolated from its environment and site packages."""
    if not sys.executable:
        raise NotFoundError("sys.executable is empty: there is no Python interpreter to read the standard library with")
    command = [sys.executable, "-I", "-S", "-W", "ignore", str(COLLECTOR)]
    done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, encoding="utf-8", check=False)
    if done.returncode:
        raise NotFoundError(f"{sys.executable} could not read the standard library:\n{done.stderr[-2000:]}")
    entries: list[Entry] = json.loads(done.stdout)
    return entries


def within(module: str, names: set[str]) -> bool:
    """Whether ``module`` is one of ``names``, or inside one."""
    while module not in names and module:
        module = module.rpartition(".")[0]
    return bool(module)


def check_modules(names: set[str], entries: list[Entry]) -> None:
    """Raise for a module that the catalogue does not have."""
    known = {part for entry in entries for part in lineage(entry["module"])}
    for name in sorted(names):
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise InputError(f"the catalogue of Python {platform.python_version()} has no module {name!r}.{hint}")


def lineage(name: str) -> list[str]:
    """``a.b.c`` as ``a``, ``a.b``, ``a.b.c``."""
    parts = name.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def document(entry: Entry, python: str, max_chars: int) -> Document:
    """An entry as a document, with its place in the library as metadata."""
    name, module = entry["id"], entry["module"]
    summary, body = summarise(entry["doc"])
    head = entry["signature"] or name
    body = shorten(body, max_chars - len(head) - len(summary) - 3)
    steps = lineage(module) + [name[: len(n)] for n in lineage(name) if not module.startswith(n)]
    return Document(
        id=name,
        text=f"{head}\n{summary}\n\n{body}".strip(),
        metadata={
            "module": module,
            "package": module.partition(".")[0],
            "kind": entry["kind"],
            "parent": entry["parent"],
            "path": " > ".join(steps),
            "python": python,
        },
        fields={"name": name, "signature": entry["signature"], "summary": summary, "body": body},
    )


def summarise(doc: str) -> tuple[str, str]:
    """The first sentence, and the rest."""
    paragraph, _, rest = doc.partition("\n\n")
    first = " ".join(paragraph.split())
    found = SENTENCE.match(first)
    summary = shorten(found.group(1) if found else first, SUMMARY_CHARS)
    body = f"{first[len(summary) :].strip(' …')}\n\n{rest}".strip()
    return summary, body


def shorten(text: str, limit: int) -> str:
    """``text`` up to ``limit`` characters, cut between words."""
    return text if len(text) <= limit else text[: max(limit, 0)].rpartition(" ")[0]
