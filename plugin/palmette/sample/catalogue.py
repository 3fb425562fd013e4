"""The running Python's standard library as documents: a real, structured catalogue that every machine has."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Literal, TypedDict

from palmette.errors import InputError, NotFoundError
from palmette.sample.questions import load_questions
from palmette.types import Document

__all__ = ["python_catalogue"]

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
    modules: Iterable[str] | None = None, *, size: Literal["full", "small"] = "full", max_chars: int = 500
) -> list[Document]:
    """One document per documented module, class, function, method and property, in the order of their names.

    An entry's id is its shortest public name (``"json.dumps"``, ``"pathlib.Path.glob"``, ``"str.split"``);
    what is re-exported or inherited appears once. The same Python gives the same catalogue. Reading it takes
    about 1.5 seconds, in a child interpreter, so that nothing is imported into this process.

    Args:
        modules: Names of modules to keep, submodules included; by default all.
        size: ``"full"`` is everything, about 6,200 entries; ``"small"`` about 2,300, those around the answers
            to :func:`~palmette.sample.load_questions`.
        max_chars: Texts are cut after this many characters; most encoders read no more.
    """
    if size not in ("full", "small"):
        raise InputError(f"size must be 'full' or 'small', got {size!r}")
    entries = collect()
    if modules is not None:
        names = {modules} if isinstance(modules, str) else set(modules)
        check_modules(names, entries)
        entries = [entry for entry in entries if not names.isdisjoint(lineage(entry["module"]))]
    if size == "small":
        entries = around_answers(entries)
    python = platform.python_version()
    return [document(entry, python, max_chars) for entry in entries]


def around_answers(entries: Sequence[Entry]) -> list[Entry]:
    """The answers, what they are part of, and the neighbours of each question's first answer."""
    parents = {entry["id"]: entry["parent"] for entry in entries}
    answers = {name for question in load_questions() for name in question.gold if name in parents}
    homes = {parents.get(question.gold[0]) for question in load_questions()} - {""}
    kept = answers | {parents[name] for name in answers}
    return [e for e in entries if e["id"] in kept or (e["parent"] in homes and is_everyday(e))]


def is_everyday(entry: Entry) -> bool:
    """Whether an entry is neither a module inside another nor an exception."""
    exception = entry["kind"] == "class" and entry["id"].endswith(("Error", "Warning", "Exception"))
    return entry["kind"] != "module" and not exception


@cache
def collect() -> Sequence[Entry]:
    """Run the collector, once, with this Python isolated from its environment and site packages."""
    if not sys.executable:
        raise NotFoundError(
            "sys.executable is empty: no Python interpreter to read the standard library with"
        )
    command = [sys.executable, "-I", "-S", "-W", "ignore", str(COLLECTOR)]
    done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, text=True, check=False)
    if done.returncode:
        raise NotFoundError(f"{sys.executable} could not read the standard library:\n{done.stderr[-2000:]}")
    entries: Sequence[Entry] = json.loads(done.stdout)
    return entries


def check_modules(names: set[str], entries: Sequence[Entry]) -> None:
    """Raise for a module that the catalogue does not have."""
    known = {part for entry in entries for part in lineage(entry["module"])}
    for name in sorted(names):
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise InputError(f"Python {platform.python_version()} documents no module {name!r}.{hint}")


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
