"""Questions about passages as words of the passages: a document expansion that lasts as long as the texts do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from palmette.config import check_kind
from palmette.data import RetrievalData, load_data
from palmette.errors import InputError
from palmette.index.encoding import existing_documents
from palmette.store.protocols import Backend, StoredDocument, read_array

WRITTEN_AT_ONCE = 256
"""Documents that are written at a time."""

Asked = Mapping[str, Mapping[str, str]]
"""Questions, a line each, by document id and the text that they are about."""


def questions_about(data: RetrievalData | str | Path) -> Asked:
    """Collect the training questions about each passage of judged data.

    Passages of a document ``a`` may be documents ``a#1``, ``a#2``, … of the data.
    """
    if isinstance(data, str | Path):
        data = load_data(data, dev_fraction=0.0)
    check_kind("questions", data, RetrievalData, "judged data or its folder, such as `palmette ask` writes")
    if "train" not in data.qrels:
        raise InputError(f"{data.name!r} has no training questions: there is nothing to add to its passages")
    asked: dict[str, list[str]] = {}
    for query, grades in data.qrels["train"].items():
        for id, grade in grades.items():
            if grade > 0:
                asked.setdefault(id, []).append(data.queries[query])
    texts: dict[str, dict[str, str]] = {}
    for passage in data.corpus:
        if passage.key in asked:
            document, _, number = passage.key.rpartition("#")
            for id in (passage.key, *([document] if document and number.isdecimal() else [])):
                texts.setdefault(id, {})[passage.content] = "\n".join(asked[passage.key])
    return texts


def add_questions(backend: Backend, asked: Asked) -> int:
    """Give passages the questions about texts that they hold, and return the number of passages that have some.

    A text that was cut elsewhere counts for the passage that has most of it.
    """
    ids, count = list(asked), 0
    for start in range(0, len(ids), WRITTEN_AT_ONCE):
        with backend.write() as writer, backend.read() as view:
            changed, keys = list[StoredDocument](), list[int]()
            for id, keys_of_passages, stored in existing_documents(view, ids[start : start + WRITTEN_AT_ONCE]):
                found = _questions_of(stored, asked[id])
                count += len(found)
                kept = stored.questions or ("",) * len(stored.passages)
                questions = tuple(found.get(number, former) for number, former in enumerate(kept))
                if questions != kept:
                    changed.append(replace(stored, questions=questions))
                    keys += keys_of_passages
            if changed:
                writer.put(changed, {spec.name: read_array(view, spec, keys) for spec in backend.arrays})
    return count


def _questions_of(stored: StoredDocument, texts: Mapping[str, str]) -> dict[int, str]:
    """Return the questions of a document's passages, by their numbers, from those about texts that it still has."""
    content, found = stored.document.content, dict[int, list[str]]()
    for text, questions in texts.items():
        start = content.find(text)
        if start >= 0:
            end = start + len(text)
            shared = [min(end, place.end) - max(start, place.start) for place in stored.passages]
            found.setdefault(shared.index(max(shared)), []).append(questions)
    return {number: "\n".join(some) for number, some in found.items()}
