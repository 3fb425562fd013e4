"""Calibrate the probabilities of an index on judged questions: some dozens suffice, where training takes hundreds.

    x = sum of evidence of a question's first hit        y = 1 if that hit is relevant, else 0
    probability(x) = 1 / (1 + exp(−(slope · x + prior)))

Slope and prior are fitted on the index's own search over all of its documents. Ranks stay as they are.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np

from palmette.config import check_kind, check_range
from palmette.errors import ConfigError, InputError, NotFoundError, shown
from palmette.index import Index
from palmette.learning.refit import grades_of_votes
from palmette.methods.base import Model
from palmette.ranking.calibration import fit_probability

FEWEST_QUESTIONS = 10
"""Judged questions below which nothing is fitted."""


def calibrate_index(index: Index, judged: Mapping[str, Mapping[str, int]] | None = None) -> Model:
    """Return an index's model with probabilities that hold for this index: of hits that score .7, seven of ten help.

    The vectors of the model are the same, so that ``index.copy_to(path, model=model)`` encodes nothing.

    Args:
        index: An index that is searched with its default options.
        judged: Grades of documents by question and id (0: not relevant). A first hit without a grade counts as not
            relevant where another document is. ``None`` takes the votes that the index has kept.
    """
    questions = judged_questions(index, judged)
    options = index.model.search_options({})
    calibration = index.model.calibration(options, "auto")
    if calibration is None:
        raise ConfigError(f"a {index.model.method} model does not rank by evidence, and has no probabilities to fit")
    evidence, relevant = [], []
    for question, hits in zip(questions, index.search(list(questions), k=1, explain=True), strict=True):
        grades = questions[question]
        if not hits or (hits[0].id not in grades and max(grades.values()) <= 0):
            continue
        explanation = hits[0].explain()
        prior = next(part.value for part in explanation.parts if part.name == "prior")
        evidence.append((explanation.detail["logit"] - prior) / calibration.slope)
        relevant.append(grades.get(hits[0].id, 0) > 0)
    if len(evidence) < FEWEST_QUESTIONS:
        raise InputError(
            f"{len(evidence)} questions have a judged first hit, and {FEWEST_QUESTIONS} are needed to fit a probability"
        )
    slope, prior = fit_probability(np.array(evidence), np.array(relevant))
    fitted = calibration.replace(slope=slope, prior=prior, source="held-out questions")
    model = copy.copy(index.model)
    model.calibrations = {**index.model.calibrations, index.model.lexical_key(options) or "": fitted}
    return model


def judged_questions(index: Index, judged: Any) -> dict[str, Mapping[str, int]]:
    """Return the questions that have grades, with their grades by document id.

    Raises unless ``judged`` are grades of documents of the index. ``None`` takes the votes on documents that it still
    has.
    """
    # 1. Grades by question and id.
    votes = index.feedback_log.votes() if judged is None else []
    ids = [vote.document for vote in votes]
    if judged is not None:
        check_kind("judged", judged, Mapping, "a dict such as {'a question': {'id': 1}}")
        for question, grades in judged.items():
            check_kind("a judged question", question, str, "a str")
            check_kind(f"judged[{shown(question)}]", grades, Mapping, "a dict of grades by id")
        ids = [id for grades in judged.values() for id in grades if isinstance(id, str)]
    # 2. The documents that the index has.
    distinct = list(dict.fromkeys(ids))
    known = {id for id, document in zip(distinct, index.get(distinct), strict=True) if document is not None}
    if judged is None:
        judged = grades_of_votes(vote for vote in votes if vote.document in known)
    for question, grades in judged.items():
        for id, grade in grades.items():
            if id not in known:
                raise NotFoundError(f"judged[{shown(question)}] names {shown(id)}, which is no document of this index")
            check_range("calibrate_index", f"grade of {shown(id)}", grade, 0)
            check_kind(f"grade of {shown(id)}", grade, (int, float, np.number), "a number")
    return {question: grades for question, grades in judged.items() if question.strip() and grades}
