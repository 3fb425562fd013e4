"""Documents, queries and judgements, from whatever a user has.

``load_data`` reads what trains or measures a model, ``iter_documents`` what an index takes in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from palmette.config import check_kind, check_path
from palmette.data.documents import Corpus, drop_blanks, iter_documents, to_document, to_documents
from palmette.data.retrieval import Qrels, RetrievalData, Split
from palmette.errors import DuplicateIdError, InputError, shown
from palmette.sources.records import existing, is_jsonl, located, read_jsonl, read_lines
from palmette.types import Pair

__all__ = [
    "DataLike",
    "Qrels",
    "RetrievalData",
    "Split",
    "drop_blanks",
    "iter_documents",
    "load_data",
    "to_document",
    "to_documents",
]

QUERY_KEYS = ("query", "question", "anchor")
SPLIT_NAMES = {"validation": "dev", "valid": "dev", "val": "dev"}
"""Other names of the split that a training is watched by."""
PAIR_KEYS = (QUERY_KEYS, ("positive", "answer", "document", "text", "passage"), ("negatives", "negative"))

DataLike = str | Path | RetrievalData | Iterable[Any]
"""A BEIR folder, a JSONL file, an iterable of pairs or documents, or data loaded before."""


def load_data(data: DataLike, *, dev_fraction: float = 0.1, seed: int = 0) -> RetrievalData:
    """Read training or evaluation data.

    Args:
        data: One of

            - a BEIR folder: ``corpus.jsonl``, ``queries.jsonl``, ``qrels/{train,dev,test}.tsv``, plain or .gz
            - a JSONL file, or an iterable, of pairs: ``{"query", "positive", "negatives"}``, :class:`Pair`,
              or ``(query, positive)`` and ``(query, positive, negatives)`` tuples
            - documents without labels: a BEIR folder with only a corpus, a folder of files,
              a JSONL file, or an iterable of documents (ours, LangChain's, LlamaIndex's, str)
            - a :class:`RetrievalData`, which is returned with a dev split if it lacks one.
        dev_fraction: Share of the training queries to hold out where the data has no dev split.
        seed: Of the held-out share.

    Raises:
        InputError: The data is empty, malformed (file and line are named) or inconsistent.
        DuplicateIdError: Two different contents under one id.
    """
    check_kind("seed", seed, int, "a whole number")
    loaded = data if isinstance(data, RetrievalData) else _read(data)
    return loaded.with_dev(dev_fraction, seed)


def _read(data: str | Path | Iterable[Any]) -> RetrievalData:
    """Read pairs, a BEIR folder or documents, by what a path holds or by the first item of an iterable."""
    if isinstance(data, str | Path):
        path = check_path(data)
        name = path.name.removesuffix(".gz").removesuffix(".jsonl")
        if existing(path / "corpus.jsonl") and (qrels := read_qrels(path)):
            corpus = list(iter_documents(path))
            return RetrievalData(path.resolve().name, corpus, read_query_file(path), qrels)
        if path.is_file() and is_jsonl(path):
            records = read_jsonl(path)
            first = next(records, None)
            if first is not None and any(key in first[1] for key in QUERY_KEYS):
                return _from_pairs(chain([first], records), name)
        return RetrievalData(name, list(iter_documents(data)))
    if isinstance(data, Mapping | bytes) or not hasattr(data, "__iter__"):
        raise InputError(
            f"expected a path or an iterable of pairs or documents, got {type(data).__name__} {shown(data)}"
        )
    values = iter(data)
    first = next(values, None)
    every = values if first is None else chain([first], values)
    if isinstance(first, Pair | tuple) or (isinstance(first, Mapping) and not first.keys().isdisjoint(QUERY_KEYS)):
        return _from_pairs(((f"pair {i}", value) for i, value in enumerate(every)), "pairs")
    return RetrievalData("documents", list(iter_documents(every)))


def _pair_parts(value: Any) -> tuple[Any, list[Any], list[Any]]:
    """Query, positives and negatives of a pair in any of its forms."""
    if isinstance(value, Pair):
        parts: Sequence[Any] = (value.query, value.positive, value.negatives)
    elif isinstance(value, Mapping):
        parts = [next((value[k] for k in keys if value.get(k) is not None), None) for keys in PAIR_KEYS]
        if None in (missing := parts[:2]):
            name, *others = map(repr, PAIR_KEYS[missing.index(None)])
            raise InputError(f"a pair needs {name} (or {', '.join(others)}); got the keys {sorted(value)}")
    elif isinstance(value, tuple) and len(value) in (2, 3):
        parts = (*value, None)[:3]
    else:
        raise InputError(
            f"expected a Pair, (query, positive), (query, positive, negatives) or a dict, got {shown(value)}"
        )
    positives, negatives = (list(t) if isinstance(t, list | tuple) else [t] for t in parts[1:])
    return parts[0], positives, [text for text in negatives if text is not None]


def _from_pairs(pairs: Iterable[tuple[str, Any]], name: str) -> RetrievalData:
    """Data from (place, pair) tuples; equal queries become one, negatives become judgements of grade 0."""
    corpus, queries, train = Corpus(), dict[str, str](), Qrels()
    for place, value in pairs:
        with located(place):
            query, positives, negatives = _pair_parts(value)
            if not isinstance(query, str) or not query.strip():
                raise InputError(f"the query must be a str that is not empty, got {shown(query)}")
            if not positives:
                raise InputError(f"query {shown(query)} has no positive")
            key = hashlib.sha256(query.strip().encode("utf-8", "surrogatepass")).hexdigest()[:32]
            queries.setdefault(key, query.strip())
            judged = train.setdefault(key, {})
            for text in negatives:
                judged.setdefault(corpus.add(to_document(text)), 0)
            judged.update((corpus.add(to_document(text)), 1) for text in positives)
    return RetrievalData(name, list(corpus.values()), queries, {"train": train})


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
