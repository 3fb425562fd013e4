"""The folder of questions: checked before any call is made, and written in BEIR format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from palmette.config import check_path
from palmette.data import RetrievalData
from palmette.errors import ConfigError, StorageFullError
from palmette.types.text import is_unicode

ANSWERS = "answers.jsonl"
"""File of the answers, which tells that the folder's other files may be written anew."""
_FILES = ("corpus.jsonl", "queries.jsonl", "qrels/train.tsv")


def check_questions_folder(out: str | Path, documents: Any) -> Path:
    """Return the path of ``out``; raise if it holds what a run must not replace, or is read as documents."""
    folder = check_path(out)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"out: {folder} is a file; name a folder, which need not exist")
    for place in (folder / name for name in (ANSWERS, *_FILES)):
        if place.is_dir():
            raise ConfigError(f"out: {place} is a folder, but a file of that name is to be written; name a new folder")
    if (folder / "qrels").exists() and not (folder / "qrels").is_dir():
        raise ConfigError(f"out: {folder / 'qrels'} is a file, but is to be a folder; name a new folder")
    source = check_path(documents) if isinstance(documents, str | Path) else None
    if source is not None and source.is_dir() and folder.resolve().is_relative_to(source.resolve()):
        raise ConfigError(
            f"out: {folder} lies in {source}, whose files are the documents: the next run would read its answers as "
            "documents. Name a folder outside"
        )
    names = ("corpus.jsonl", "corpus.jsonl.gz", "queries.jsonl", "queries.jsonl.gz", "qrels")
    held = [name for name in names if (folder / name).exists()]
    if held and not (folder / ANSWERS).exists():
        raise ConfigError(
            f"out: {folder} holds {', '.join(held)} and no {ANSWERS}: that is other data, which would be replaced. "
            "Name a new folder, or delete these files"
        )
    return folder


def make_folder(folder: Path) -> None:
    """Create a folder that may exist."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"out: {folder} cannot be made ({error.strerror}); name another folder") from error


def write_beir(data: RetrievalData, folder: Path) -> None:
    """Write data in BEIR format; each file replaces that of an earlier run in one step."""
    corpus = [{"_id": d.key, "text": d.content, "metadata": dict(d.metadata)} for d in data.corpus]
    queries = [{"_id": key, "text": text} for key, text in data.queries.items()]
    judged = data.qrels.get("train", {}).items()
    rows = [f"{query}\t{document}\t{grade}" for query, grades in judged for document, grade in grades.items()]
    lines = (map(_line, corpus), map(_line, queries), ["query-id\tcorpus-id\tscore", *rows])
    try:
        (folder / "qrels").mkdir(exist_ok=True)
        for name, content in zip(_FILES, lines, strict=True):
            draft = folder / f"{name}.new"
            draft.write_text("".join(f"{line}\n" for line in content), encoding="utf-8")
            draft.replace(folder / name)
    except OSError as error:
        raise StorageFullError(
            f"{folder} cannot be written ({error.strerror}): make room and run again; the answers are kept"
        ) from error


def _line(record: dict[str, Any]) -> str:
    """Return a record as JSON that UTF-8 can encode: halves of surrogate pairs are escaped."""
    line = json.dumps(record, ensure_ascii=False)
    return line if is_unicode(line) else json.dumps(record)
