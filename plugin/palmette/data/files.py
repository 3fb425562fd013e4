"""BEIR folders: queries and judgements; every error names the file and the line."""

from __future__ import annotations

from pathlib import Path

from palmette.errors import DuplicateIdError, InputError, shown
from palmette.sources.records import existing, read_jsonl, read_lines

SPLIT_NAMES = {"validation": "dev", "valid": "dev", "val": "dev"}


def read_qrels(folder: Path) -> dict[str, dict[str, dict[str, int]]]:
    """Judgements by split of a BEIR folder: train, dev, test, then others; queries without any raise."""
    files: dict[str, Path] = {}
    for path in sorted((folder / "qrels").glob("*.tsv*")):
        stem = path.name.removesuffix(".gz").removesuffix(".tsv")
        if "." not in stem:
            files.setdefault(SPLIT_NAMES.get(stem, stem), path)
    if not files and (queries := existing(folder / "queries.jsonl")):
        raise InputError(f"{queries} has no judgements: expected {folder / 'qrels'}/train.tsv, dev.tsv or test.tsv")
    files = {split: files[split] for split in ("train", "dev", "test") if split in files} | files
    return {split: read_judgements(path) for split, path in files.items()}


def read_query_file(folder: Path) -> dict[str, str]:
    """Query id → text of a BEIR folder."""
    path = existing(folder / "queries.jsonl")
    if path is None:
        raise InputError(f"{folder} has judgements but no queries.jsonl (or queries.jsonl.gz)")
    queries: dict[str, str] = {}
    for place, record in read_jsonl(path):
        key, text = record.get("_id", record.get("id")), record.get("text")
        if key is None or not isinstance(text, str) or not text.strip():
            raise InputError(f"{place}: a query needs '_id' and a 'text' that is not empty, got {shown(record, 120)}")
        if (before := queries.setdefault(str(key), text)) != text:
            raise DuplicateIdError(
                f"{place}: query id {str(key)!r} has two texts: {shown(before, 60)} and {shown(text, 60)}"
            )
    return queries


def read_judgements(path: Path) -> dict[str, dict[str, int]]:
    """Query id → document id → grade, from tab-separated lines with or without a heading."""
    qrels: dict[str, dict[str, int]] = {}
    for number, (place, line) in enumerate(read_lines(path)):
        cells = [cell.strip() for cell in line.split("\t")]
        if len(cells) != 3 or not cells[0] or not cells[1]:
            raise InputError(f"{place}: expected query id, document id and grade between tabs, got {shown(line)}")
        try:
            query, document, grade = cells[0], cells[1], int(cells[2])
        except ValueError as error:
            if number == 0:  # a heading
                continue
            raise InputError(f"{place}: the grade must be a whole number, got {cells[2]!r}") from error
        if (before := qrels.setdefault(query, {}).setdefault(document, grade)) != grade:
            raise InputError(
                f"{place}: query {query!r} and document {document!r} were judged {before}, now {grade}; keep one"
            )
    if not qrels:
        raise InputError(f"{path} holds no judgements; remove the file if there are none")
    return qrels
