"""From what a user has to :class:`RetrievalData`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from palmette.data.documents import Corpus, iter_documents, to_document
from palmette.data.jsonl import existing, is_jsonl, located, read_jsonl, read_lines
from palmette.data.retrieval import Qrels, RetrievalData
from palmette.data.unlabelled import DEFAULT_KINDS, make_queries
from palmette.errors import DuplicateIdError, InputError
from palmette.types import Pair

__all__ = ["from_documents", "from_pairs", "load_data", "with_made_queries"]

QUERY_KEYS = ("query", "question", "anchor")
POSITIVE_KEYS = ("positive", "answer", "document", "text", "passage")
NEGATIVE_KEYS = ("negatives", "negative")
SPLIT_NAMES = {"validation": "dev", "valid": "dev", "val": "dev"}

DataLike = str | Path | RetrievalData | Iterable[Any]
"""A BEIR folder, a JSONL file, an iterable of pairs or documents, or data loaded before."""


def load_data(
    data: DataLike,
    *,
    dev_fraction: float = 0.1,
    seed: int = 0,
    kinds: Iterable[str] = DEFAULT_KINDS,
    cut: float = 0.0,
    titles: bool = True,
) -> RetrievalData:
    """Read training or evaluation data.

    Args:
        data: One of

            - a BEIR folder: ``corpus.jsonl``, ``queries.jsonl``, ``qrels/{train,dev,test}.tsv``, plain or .gz
            - a JSONL file, or an iterable, of pairs: ``{"query", "positive", "negatives"}``, :class:`Pair`,
              or ``(query, positive)`` and ``(query, positive, negatives)`` tuples
            - documents without labels: a BEIR folder with only a corpus, a folder of Markdown or text files,
              a JSONL file, or an iterable of documents (ours, LangChain's, LlamaIndex's, str). Queries are
              then made from the documents themselves, see ``palmette.data.unlabelled``
            - a :class:`RetrievalData`, which is returned with a dev split if it lacks one.
        dev_fraction: Share of the training queries to hold out where the data has no dev split.
        seed: Of the held-out share and of self-made queries.
        kinds: The kinds of self-made queries; none where there are to be no queries.
        cut: Share of the self-made queries whose words are cut out of their document.
        titles: Put titles that files give apart from the text before it, as BEIR does.

    Raises:
        InputError: The data is empty, malformed (file and line are named) or inconsistent.
        DuplicateIdError: Two different contents under one id.
    """
    return _load(data, titles, seed=seed, kinds=tuple(kinds), cut=cut).with_dev(dev_fraction, seed)


def _load(data: DataLike, titles: bool, **making: Any) -> RetrievalData:
    if isinstance(data, RetrievalData):
        return data
    if isinstance(data, str | Path):
        path = Path(data).expanduser()
        name = path.name.removesuffix(".gz").removesuffix(".jsonl")
        if path.is_dir() and existing(path / "corpus.jsonl") and _judgement_files(path):
            return _from_beir(path, titles)
        if path.is_file() and is_jsonl(path):
            records = read_jsonl(path)
            first = next(records, None)
            if first is not None and any(key in first[1] for key in QUERY_KEYS):
                return from_pairs(chain([first], records), name=name)
        return from_documents(iter_documents(data, titles=titles), name=name, **making)
    values = _iterator(data)
    first = next(values, None)
    if first is not None and _is_pair(first):
        return from_pairs(((f"pair {i}", value) for i, value in enumerate(chain([first], values))))
    everything = values if first is None else chain([first], values)
    return from_documents(iter_documents(everything), **making)


def _iterator(data: object) -> Iterator[Any]:
    if not isinstance(data, Iterable) or isinstance(data, Mapping | bytes):
        raise InputError(
            f"expected a path or an iterable of pairs or documents, got {type(data).__name__} {data!r:.80}"
        )
    return iter(data)


def from_documents(documents: Iterable[Any], *, name: str = "documents", **making: Any) -> RetrievalData:
    """Data without labels: a ``train`` split of queries made from the documents, see ``make_queries``."""
    corpus = list(iter_documents(documents))
    made = {
        f"{item.kind}-{n}-{corpus[item.document].key}": item
        for n, item in enumerate(make_queries(corpus, **making))
    }
    if not made and making.get("kinds", DEFAULT_KINDS):
        raise InputError(
            f"{name}: no training queries could be made from {len(corpus)} documents: they are too short to "
            "be split; give pairs of a query and its document"
        )
    return RetrievalData(
        name,
        corpus,
        {key: item.query for key, item in made.items()},
        {"train": {key: {corpus[item.document].key: 1} for key, item in made.items()}},
        labelled=False,
        remainders={key: item.rest for key, item in made.items() if item.rest is not None},
    )


def with_made_queries(data: RetrievalData, seed: int) -> RetrievalData:
    """The same documents and held-out questions; the queries that train are made from the documents."""
    alone = from_documents(data.corpus, name=data.name, seed=seed, kinds=DEFAULT_KINDS, cut=0.0)
    named = {query: data.unused(query) for query in alone.queries}
    return replace(
        data,
        queries=data.queries | {named[query]: text for query, text in alone.queries.items()},
        qrels={
            **data.qrels,
            "train": {named[query]: judged for query, judged in alone.qrels["train"].items()},
        },
        labelled=False,
        remainders={},
    )


def _is_pair(value: object) -> bool:
    return isinstance(value, Pair | tuple) or (
        isinstance(value, Mapping) and any(key in value for key in QUERY_KEYS)
    )


def _first(record: Mapping[str, Any], keys: tuple[str, ...], needed: bool) -> Any:
    found = [key for key in keys if record.get(key) is not None]
    if not found and needed:
        raise InputError(
            f"a pair needs {keys[0]!r} (or {', '.join(map(repr, keys[1:]))}); got the keys {sorted(record)}"
        )
    return record[found[0]] if found else ()


def _many(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _parts(value: Any) -> tuple[Any, list[Any], list[Any]]:
    """Query, positives and negatives of a pair in any of its forms."""
    if isinstance(value, Pair):
        return value.query, [value.positive], list(value.negatives)
    if isinstance(value, Mapping):
        positive, negative = _first(value, POSITIVE_KEYS, True), _first(value, NEGATIVE_KEYS, False)
        return _first(value, QUERY_KEYS, True), _many(positive), _many(negative)
    if isinstance(value, tuple) and len(value) in (2, 3):
        return value[0], _many(value[1]), _many(value[2]) if len(value) == 3 else []
    raise InputError(
        f"expected a Pair, (query, positive), (query, positive, negatives) or a dict, got {value!r:.80}"
    )


def from_pairs(pairs: Iterable[tuple[str, Any]], *, name: str = "pairs") -> RetrievalData:
    """Data from (place, pair) tuples; equal queries become one, negatives become judgements of grade 0."""
    corpus, queries, train = Corpus(), dict[str, str](), Qrels()
    for place, value in pairs:
        with located(place):
            query, positives, negatives = _parts(value)
            if not isinstance(query, str) or not query.strip():
                raise InputError(f"the query must be a str that is not empty, got {query!r:.80}")
            if not positives:
                raise InputError(f"query {query!r:.80} has no positive")
            key = hashlib.sha256(query.strip().encode("utf-8", "surrogatepass")).hexdigest()[:32]
            queries.setdefault(key, query.strip())
            judged = train.setdefault(key, {})
            for text in negatives:
                judged.setdefault(corpus.add(to_document(text)), 0)
            judged.update((corpus.add(to_document(text)), 1) for text in positives)
    return RetrievalData(name, list(corpus.documents.values()), queries, {"train": train})


def _judgement_files(folder: Path) -> dict[str, Path]:
    """Split → file, in the order train, dev, test, others; a folder with queries but no judgements raises."""
    files: dict[str, Path] = {}
    for path in sorted((folder / "qrels").glob("*.tsv*")):
        stem = path.name.removesuffix(".gz").removesuffix(".tsv")
        if "." not in stem:
            files.setdefault(SPLIT_NAMES.get(stem, stem), path)
    if not files and (queries := existing(folder / "queries.jsonl")):
        raise InputError(
            f"{queries} has no judgements: expected {folder / 'qrels'}/train.tsv, dev.tsv or test.tsv"
        )
    order = ["train", "dev", "test"]
    return dict(
        sorted(files.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order))
    )


def _from_beir(folder: Path, titles: bool) -> RetrievalData:
    queries_file = existing(folder / "queries.jsonl")
    if queries_file is None:
        raise InputError(f"{folder} has judgements but no queries.jsonl (or queries.jsonl.gz)")
    queries: dict[str, str] = {}
    for place, record in read_jsonl(queries_file):
        key, text = record.get("_id", record.get("id")), record.get("text")
        if key is None or not isinstance(text, str) or not text.strip():
            raise InputError(
                f"{place}: a query needs '_id' and a 'text' that is not empty, got {record!r:.120}"
            )
        if queries.setdefault(str(key), text) != text:
            raise DuplicateIdError(
                f"{place}: query id {str(key)!r} has two texts: {queries[str(key)]!r:.60} and {text!r:.60}"
            )
    qrels = {split: _read_qrels(path) for split, path in _judgement_files(folder).items()}
    return RetrievalData(folder.resolve().name, list(iter_documents(folder, titles=titles)), queries, qrels)


def _read_qrels(path: Path) -> Qrels:
    qrels: Qrels = {}
    for place, query, doc, grade in _judgement_lines(path):
        if (before := qrels.setdefault(query, {}).setdefault(doc, grade)) != grade:
            raise InputError(
                f"{place}: query {query!r} and document {doc!r} were judged {before}, now {grade}; keep one"
            )
    if not qrels:
        raise InputError(f"{path} holds no judgements; remove the file if there are none")
    return qrels


def _judgement_lines(path: Path) -> Iterator[tuple[str, str, str, int]]:
    for number, (place, line) in enumerate(read_lines(path)):
        cells = [cell.strip() for cell in line.split("\t")]
        if len(cells) != 3 or not cells[0] or not cells[1]:
            raise InputError(
                f"{place}: expected query id, document id and grade between tabs, got {line!r:.80}"
            )
        try:
            yield place, cells[0], cells[1], int(cells[2])
        except ValueError as error:
            if number:  # the first line may be a heading
                raise InputError(f"{place}: the grade must be a whole number, got {cells[2]!r}") from error
