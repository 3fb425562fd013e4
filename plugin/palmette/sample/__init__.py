"""A data set that every machine has: the standard library of the running Python, and questions about it."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Literal

from palmette.data import Qrels, RetrievalData
from palmette.errors import InputError, NotFoundError
from palmette.types import Document

__all__ = ["Question", "load_questions", "python_catalogue", "sample_data"]

COLLECTOR = Path(__file__).with_name("collect.py")
SampleEntry = dict[str, str]
"""An entry of :mod:`palmette.sample.collect`: id, module, parent, kind, signature, doc."""
SENTENCE = re.compile(r"(.+?(?<!e\.g)(?<!i\.e)(?<!etc)(?<!vs)[.!?])(?=\s+[A-Z(\"'`]|\Z)")
SUMMARY_CHARS = 300
MAX_CHARS = 500
"""Texts are cut after this many characters; most encoders read no more."""
HELDOUT = 7
"""One module in this many lends no summaries to training."""
MIN_WORDS = 3
"""Words of the shortest summary that names something."""
MAX_SHARED = 3
"""Entries that may share one summary."""


@dataclass(frozen=True)
class SampleQuestion:
    """A handwritten how-to question and the ids of the entries that answer it, the most typical first.

    Ids (``"howto-001"``, …) are stable. The split is ``"dev"`` to choose by, ``"test"`` to report: the parity of the
    id's SHA-256. Some answers exist in newer Pythons only.
    """

    id: str
    question: str
    gold: tuple[str, ...]
    split: Literal["dev", "test"]


@cache
def load_questions() -> tuple[SampleQuestion, ...]:
    """All questions, in the order of their ids."""
    lines = Path(__file__).with_name("questions.jsonl").read_text("utf-8").splitlines()
    return tuple(SampleQuestion(**row | {"gold": tuple(row["gold"])}) for row in map(json.loads, lines))


def python_catalogue(modules: Iterable[str] | None = None) -> list[Document]:
    """One document per documented module, class, function, method and property, in the order of their names.

    An entry's id is its shortest public name (``"json.dumps"``, ``"pathlib.Path.glob"``, ``"str.split"``);
    what is re-exported or inherited appears once. The same Python gives the same catalogue. Reading it takes
    about 1.5 seconds, in a child interpreter, so that nothing is imported into this process.

    Args:
        modules: Names of modules to keep, submodules included; by default all, about 6,200 entries.
    """
    entries = library_entries()
    if modules is not None:
        names = {modules} if isinstance(modules, str) else set(modules)
        known = {part for entry in entries for part in _lineage(entry["module"])}
        if unknown := sorted(names - known):
            raise InputError(f"Python {platform.python_version()} documents no module {unknown[0]!r}")
        entries = [entry for entry in entries if not names.isdisjoint(_lineage(entry["module"]))]
    return [_document(entry) for entry in entries]


@cache
def library_entries() -> Sequence[SampleEntry]:
    """Run the collector, once, with this Python isolated from its environment and site packages."""
    command = [sys.executable, "-I", "-S", "-W", "ignore", str(COLLECTOR)]
    done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, text=True, check=False)
    if done.returncode:
        raise NotFoundError(f"{sys.executable} could not read the standard library:\n{done.stderr[-2000:]}")
    entries: Sequence[SampleEntry] = json.loads(done.stdout)
    return entries


def _around_answers(entries: Sequence[Document]) -> list[Document]:
    """Answers, their parents, and the neighbours of each question's first answer without submodules and exceptions."""
    parents = {entry.key: entry.metadata["parent"] for entry in entries}
    answers = {name for question in load_questions() for name in question.gold if name in parents}
    homes = {parents.get(question.gold[0]) for question in load_questions()} - {""}
    chosen = answers | {parents[name] for name in answers}
    for entry in entries:
        kind = entry.metadata["kind"]
        exception = kind == "class" and entry.key.endswith(("Error", "Warning", "Exception"))
        if entry.metadata["parent"] in homes and kind != "module" and not exception:
            chosen.add(entry.key)
    return [entry for entry in entries if entry.key in chosen]


def _lineage(name: str) -> list[str]:
    """``a.b.c`` as ``a``, ``a.b``, ``a.b.c``."""
    return list(accumulate(name.split("."), "{}.{}".format))


def _document(entry: SampleEntry) -> Document:
    """Make the document of an entry: signature, summary and body, with its place in the library."""
    name, module = entry["id"], entry["module"]
    summary, body = summarise(entry["doc"])
    head = entry["signature"] or name
    body = _shorten(body, MAX_CHARS - len(head) - len(summary) - 3)
    steps = _lineage(module) + [name[: len(n)] for n in _lineage(name) if not module.startswith(n)]
    return Document(
        id=name,
        text=f"{head}\n{summary}\n\n{body}".strip(),
        metadata={
            **{key: entry[key] for key in ("module", "kind", "parent")},
            "package": module.partition(".")[0],
            "path": " > ".join(steps),
            "python": platform.python_version(),
        },
        fields={"name": name, "signature": entry["signature"], "summary": summary, "body": body},
    )


def summarise(doc: str) -> tuple[str, str]:
    """First sentence of a docstring, and the rest."""
    paragraph, _, rest = doc.partition("\n\n")
    first = " ".join(paragraph.split())
    match = SENTENCE.match(first)
    summary = _shorten(match.group(1) if match else first, SUMMARY_CHARS)
    return summary, f"{first[len(summary) :].strip(' …')}\n\n{rest}".strip()


def _shorten(text: str, limit: int) -> str:
    """Up to ``limit`` characters of a text, cut between words."""
    return text if len(text) <= limit else text[: max(limit, 0)].rpartition(" ")[0]


def sample_data() -> RetrievalData:
    """A part of the standard library, ready to train on: for ``palmette demo``, the notebooks and the tests.

    It has about 2,300 entries, those around the answers to :func:`~palmette.sample.load_questions`. The splits are
    ``train`` (summaries → their entries), ``heldout`` (the same for modules that training does not see), ``dev`` and
    ``test`` (the two halves of the handwritten questions).
    """
    corpus = _around_answers(python_catalogue())
    queries: dict[str, str] = {}
    qrels: dict[str, Qrels] = {"train": {}, "heldout": {}, "dev": {}, "test": {}}
    by_summary: dict[str, list[Document]] = {}
    for entry in corpus:
        if (summary := entry.fields["summary"]) not in entry.fields["signature"]:
            by_summary.setdefault(summary, []).append(entry)
    for summary, entries in by_summary.items():
        if len(summary.split()) < MIN_WORDS or len(entries) > MAX_SHARED:
            continue
        first = entries[0]
        held_out = zlib.crc32(first.metadata["module"].encode()) % HELDOUT == 0  # by name: it stays so
        query = f"summary:{first.key}"
        queries[query] = summary
        qrels["heldout" if held_out else "train"][query] = {entry.key: 1 for entry in entries}
    known = {entry.key for entry in corpus}
    for question in load_questions():
        if gold := known.intersection(question.gold):
            queries[question.id] = question.question
            qrels[question.split][question.id] = {key: 1 for key in question.gold if key in gold}
    return RetrievalData(f"python-{platform.python_version()}", corpus, queries, qrels)
