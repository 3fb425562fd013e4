"""Questions, passages, and the places of the answers in them, from users' data."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from palmette.config import check_path, parse_json
from palmette.data import RetrievalData, load_data
from palmette.data.documents import Corpus, to_document
from palmette.errors import InputError, NotFoundError, shown
from palmette.lexical.analyser import UNSPACED
from palmette.sources.records import existing, is_jsonl, located, read_jsonl, read_whole
from palmette.types import Document

Said = tuple[str, int | None]
"""An answer, and its first character where that is given."""
_LISTS = (list, tuple, np.ndarray)
_UNSPACED = re.compile(f"[{UNSPACED}]")
"""Characters of scripts that write no spaces between words."""
_SPACED = rf"[^\W{UNSPACED}]"
"""Word characters of all other scripts."""


@dataclass(frozen=True)
class Example:
    """A question and what is known of its answer."""

    question: str
    answers: tuple[str, ...] | None = None
    """Accepted answers; ``()`` where no passage has one, ``None`` where it is only known which passages answer."""
    passages: tuple[int, ...] = ()
    """Rows of the passages that it was asked about."""
    starts: Mapping[tuple[str, int], tuple[int, ...]] = field(default_factory=dict)
    """Known starts of answers, in characters, by (answer, passage)."""

    @property
    def answered(self) -> bool:
        """False where its passages are known to have no answer."""
        return self.answers != ()

    def spans(self, row: int, text: str) -> list[tuple[int, int]]:
        """Characters of the answers in one of its passages."""
        return [
            (start, start + len(answer))
            for answer in (self.answers or () if row in self.passages else ())
            for start in self.starts.get((answer, row)) or occurrences(text, answer)
        ]


def occurrences(text: str, answer: str) -> list[int]:
    """Starts of an answer in a text, as whole words; in another case if it does not occur as written.

    In scripts without blanks words end anywhere.
    """
    if not answer.strip():
        return []
    before = "" if _UNSPACED.match(answer[0]) else f"(?<!{_SPACED})"
    after = "" if _UNSPACED.match(answer[-1]) else f"(?!{_SPACED})"
    pattern = f"{before}{re.escape(answer)}{after}"
    exact = [match.start() for match in re.finditer(pattern, text)]
    return exact or [match.start() for match in re.finditer(pattern, text, re.IGNORECASE)]


@dataclass(frozen=True)
class ReadingData:
    """Passages, and questions on them by split."""

    name: str
    passages: Sequence[Document]
    splits: Mapping[str, Sequence[Example]]

    def split(self, name: str) -> Sequence[Example]:
        """Questions of a split."""
        if name not in self.splits:
            known = ", ".join(map(repr, self.splits)) or "none"
            raise NotFoundError(f"{self.name} has no {name!r} split; splits: {known}")
        return self.splits[name]

    def with_answers(self) -> ReadingData:
        """Keep the questions whose answers are known, or known to be absent."""
        known = {name: [q for q in examples if q.answers is not None] for name, examples in self.splits.items()}
        if self.splits.get("train") and not known["train"]:
            raise InputError(
                f"{self.name}: no answers are given, and a span reader learns from questions with answers: give them "
                "(SQuAD's format, or JSON lines of question, context, answers), or use unit='sentence'"
            )
        return replace(self, splits={name: examples for name, examples in known.items() if examples})

    def with_dev(self, fraction: float = 0.1, seed: int = 0) -> ReadingData:
        """Hold out a ``dev`` split of the training questions, unless there is one; no passage is in both."""
        train = self.splits.get("train", ())
        if "dev" in self.splits or not train:
            return self
        of = [min(example.passages, default=-1) for example in train]
        rows = sorted(set(of))
        draw = np.random.default_rng(seed).permutation(len(rows))
        held_out = {rows[at] for at in draw[: max(1, round(fraction * len(rows)))]} if len(rows) > 1 else set()
        sides: dict[str, list[Example]] = {"train": [], "dev": []}
        for example, row in zip(train, of, strict=True):
            sides["dev" if row in held_out else "train"].append(example)
        return replace(self, splits={**self.splits, **sides})


def load_reading(data: Any, *, seed: int = 0) -> ReadingData:
    """Read questions, passages and answers.

    Args:
        data: One of

            - SQuAD's own JSON file, version 1 or 2, perhaps gzipped
            - a JSONL file, or an iterable of dicts: ``{"question", "context", "answers"}``. A context is a text or a
              document; answers are texts or ``{"text", "start"}``, and ``[]`` where the context has none, or
              ``{"text": […], "answer_start": […]}`` as in the Hub's copies of SQuAD. ``"split"`` is ``train`` unless
              it says otherwise
            - a BEIR folder whose queries have ``answers``
            - anything else that :func:`palmette.load_data` reads. Without answers a sentence reader learns from what
              documents answer a query
        seed: Seed of the held-out share.
    """
    if isinstance(data, ReadingData):
        return data.with_dev(seed=seed)
    answers: dict[str, tuple[str, ...]] = {}
    records: Iterator[tuple[str, Any]] = iter(())
    name = "questions"
    if isinstance(data, str | Path):
        path = check_path(data)
        plain = path.name.removesuffix(".gz")
        name = plain.removesuffix(".jsonl").removesuffix(".json")
        if plain.endswith(".json") and path.is_file():
            return from_records(_squad(path), name).with_dev(seed=seed)
        if path.is_file() and is_jsonl(path):
            records = read_jsonl(path)
        elif path.is_dir() and (queries := existing(path / "queries.jsonl")):
            for place, record in read_jsonl(queries):
                if isinstance(record.get("answers"), list | Mapping):
                    with located(place):
                        texts = dict.fromkeys(text for text, _ in _listed(record["answers"]))
                    answers[str(record.get("_id", record.get("id")))] = tuple(texts)
    elif not isinstance(data, RetrievalData) and isinstance(data, Iterable):
        data = list(data)
        records = ((f"question {n}", value) for n, value in enumerate(data))
    first = next(records, None)
    if first is not None and isinstance(first[1], Mapping) and {"answers", "context"} <= first[1].keys():
        return from_records(chain([first], records), name).with_dev(seed=seed)
    loaded = load_data(data, seed=seed, dev_fraction=0.0)
    return from_retrieval(loaded, answers).with_dev(seed=seed)


def from_records(records: Iterable[tuple[str, Mapping[str, Any]]], name: str) -> ReadingData:
    """Read (place, ``{"question", "context", "answers", "split"}``)."""
    corpus, splits = Corpus(), dict[str, list[Example]]()
    rows: dict[str, int] = {}
    for place, record in records:
        with located(place):
            question = record.get("question")
            if not isinstance(question, str) or not question.strip():
                raise InputError(f"'question' must be a str that is not empty, got {shown(question)}")
            answers = _listed(record.get("answers"))
            if "context" not in record:
                raise InputError(f"'context' is missing; got the keys {sorted(record)}")
            passage = to_document(record["context"])
            row, text = rows.setdefault(corpus.add(passage), len(rows)), passage.content
            places: dict[str, tuple[int, ...]] = {}  # of each answer, the starts that are given
            for said, start in answers:
                if start is None and not occurrences(text, said):
                    raise InputError(
                        f"the answer {shown(said)} is not in its context {shown(text)}, as whole words: give it as it "
                        "stands there, or where it starts: {'text': …, 'start': …}"
                    )
                if start is not None and not text.startswith(said, start):
                    what = f"the answer {shown(said)} should start at character {start}"
                    raise InputError(f"{what}, where {text[start:][:40]!r} stands")
                places[said] = places.get(said, ()) + (() if start is None else (start,))
            starts = {(said, row): positions for said, positions in places.items() if positions}
            example = Example(question, tuple(places), (row,), starts)
            splits.setdefault(str(record.get("split", "train")), []).append(example)
    if not rows:
        raise InputError(f"{name} has no questions; give at least two")
    return ReadingData(name, list(corpus.values()), splits)


def _listed(answers: Any) -> list[Said]:
    """Answers and their starts, of a list or of a list of texts and one of starts."""
    if isinstance(answers, Mapping):
        texts, starts = answers.get("text"), answers.get("answer_start")
        if isinstance(texts, _LISTS) and isinstance(starts, _LISTS) and len(texts) == len(starts):
            answers = [{"text": text, "start": start} for text, start in zip(texts, starts, strict=True)]
    if not isinstance(answers, _LISTS):
        raise InputError(
            "'answers' must be a list, [] where there is none, or {'text': […], 'answer_start': […]} of one length; "
            f"got {shown(answers)}"
        )
    listed: list[Said] = []
    for answer in answers:
        facts = answer if isinstance(answer, Mapping) else {"text": answer}
        text, start = facts.get("text"), facts.get("start", facts.get("answer_start"))
        if not isinstance(text, str):
            raise InputError(f"an answer is a str or {{'text', 'start'}}, got {shown(answer)}")
        try:
            listed.append((text, None if start is None else int(start)))
        except (TypeError, ValueError):
            raise InputError(f"the start of the answer {shown(text)} must be an int, got {shown(start)}") from None
    return listed


def _squad(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Records of a file in SQuAD's form."""
    try:
        content = parse_json(read_whole(path))
        for number, article in enumerate(content["data"]):
            for paragraph in article["paragraphs"]:
                for entry in paragraph["qas"]:
                    name = shown(entry.get("id", entry["question"]), 60)
                    said = [] if entry.get("is_impossible") else entry["answers"]
                    record = {"question": entry["question"], "context": paragraph["context"], "answers": said}
                    yield f"{path}, article {number}, question {name}", record
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(
            f"{path} is not in SQuAD's form ({error!r}): expected data → paragraphs → context, qas → question, answers"
        ) from error


def from_retrieval(data: RetrievalData, answers: Mapping[str, tuple[str, ...]]) -> ReadingData:
    """Questions from judged queries, and the answers of those that have any."""
    splits = {}
    for name, qrels in data.qrels.items():
        examples = splits[name] = list[Example]()
        for query, grades in qrels.items():
            rows = tuple(data.rows[id] for id, grade in grades.items() if grade > 0)
            examples.append(Example(data.queries[query], answers.get(query), rows))
    return ReadingData(data.name, data.corpus, splits)
