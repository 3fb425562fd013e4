"""Comparison of two indexes on the same questions: agreement, quality and cost."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from palmette.config import check_path
from palmette.data import load_data
from palmette.data.metrics import ndcg
from palmette.errors import InputError
from palmette.index import Index
from palmette.sources.records import read_lines


@dataclass(frozen=True)
class ComparedQuestion:
    """A question, and the grades of the documents that answer it, where they are known."""

    text: str
    by_id: Mapping[str, int] = field(default_factory=dict)
    by_text: Mapping[str, int] = field(default_factory=dict)
    """Grades by the documents' texts, for an index with other ids."""


@dataclass(frozen=True)
class Comparison:
    """Results of two indexes on the same questions."""

    questions: int
    judged: int
    """Number of questions with known answers."""
    k: int
    overlap: float
    """Mean share of the first ``k`` hits that both indexes return."""
    same_first: float
    """Share of the questions with the same first hit."""
    wins: int
    """Number of judged questions that the second index answers better."""
    losses: int
    """Number of judged questions that the second index answers worse."""
    score: tuple[float, float]
    """Mean nDCG of the judged questions; NaN without any."""
    seconds: tuple[float, float]
    """Mean processor time of a question."""
    changed: Sequence[str]
    """Questions whose hits differ most."""

    def to_dict(self) -> dict[str, Any]:
        """The comparison as JSON values."""
        return asdict(self) | {"score": [None if np.isnan(score) else score for score in self.score]}


def read_questions(path: str | Path) -> list[ComparedQuestion]:
    """Read questions from the lines of a text file, or with judgements from data of :func:`palmette.load_data`."""
    file = check_path(path)
    if file.suffix == ".txt" and file.is_file():
        return [ComparedQuestion(line.strip()) for _, line in read_lines(file)]
    data = load_data(file)
    texts = {document.key: document.content for document in data.corpus}
    questions = []
    for qrels in data.qrels.values():
        for id, grades in qrels.items():
            relevant = {key: grade for key, grade in grades.items() if grade > 0}
            named = {texts[key]: grade for key, grade in relevant.items() if key in texts}
            questions.append(ComparedQuestion(data.queries[id], relevant, named))
    return questions


def compare(
    old: Index, new: Index, questions: Sequence[ComparedQuestion], k: int = 10, changed: int = 10
) -> Comparison:
    """Search both indexes for every question."""
    if not questions:
        raise InputError("there is no question to compare with: give a file that has one at least")
    # 1. Both indexes' hits, the time that they take, and nDCG@k where the answers are known.
    scores, seconds, ids = np.full((2, len(questions)), np.nan), np.zeros(2), list[list[list[str]]]()
    for row, index in enumerate((old, new)):
        index.search(questions[0].text, k)  # compiles
        ids_of_queries: list[list[str]] = []
        for column, question in enumerate(questions):
            begun = time.process_time()
            hits = index.search(question.text, k)
            seconds[row] += time.process_time() - begun
            ids_of_queries.append([hit.id for hit in hits])
            if question.by_id:
                texts, ideal = question.by_text, sorted(question.by_id.values(), reverse=True)[:k]
                gains = [question.by_id.get(hit.id, texts.get(hit.document.content, 0)) for hit in hits]
                scores[row, column] = ndcg(np.array([gains], np.float64), np.array([ideal], np.float64))[0]
        ids.append(ids_of_queries)
    # 2. Their agreement, and who gains where.
    overlaps = np.array([len({*a} & {*b}) / max(1, len({*a} | {*b})) for a, b in zip(*ids, strict=True)])
    judged = np.array([bool(question.by_id) for question in questions])
    gained = scores[1, judged] - scores[0, judged]
    means = scores[:, judged].mean(axis=1) if judged.any() else np.full(2, np.nan)
    return Comparison(
        questions=len(questions),
        judged=int(judged.sum()),
        k=k,
        overlap=float(overlaps.mean()),
        same_first=float(np.mean([a[:1] == b[:1] for a, b in zip(*ids, strict=True)])),
        wins=int((gained > 1e-9).sum()),
        losses=int((gained < -1e-9).sum()),
        score=(float(means[0]), float(means[1])),
        seconds=(float(seconds[0]) / len(questions), float(seconds[1]) / len(questions)),
        changed=[questions[row].text for row in np.argsort(overlaps, kind="stable")[:changed] if overlaps[row] < 1],
    )
