"""Training pairs from a reranker, the teacher: it judges the hits of an index for unjudged questions."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np

from palmette.config import check_count, check_kind, check_path
from palmette.data import RetrievalData
from palmette.encoder.local.files import sha256_of
from palmette.errors import ConfigError, InputError, shown
from palmette.index import Index
from palmette.learning.calls import WRONG_PROMPT, AnswerLog, LoggedAnswer, key_of, make_folder
from palmette.machine.llm import RefusedError, as_llm
from palmette.machine.progress import progress_bar
from palmette.ranking.rerankers import TextScorer, checked_scores, framework_scorer, model_name

log = logging.getLogger("palmette.learning")

JUDGED_HITS = 20
"""Default number of hits per question that the teacher judges."""
LEAST_LEAD = 0.45
"""Least lead of a question's best score over the mean, as a share of the lead if all others were equal."""
JUDGE_PROMPT = """How well does each text answer the query? Reply with JSON only: {{"scores": [0 to 10 for each text]}}

Query: {query}

{texts}"""
SCORES_SCHEMA = {
    "type": "object",
    "properties": {"scores": {"type": "array", "items": {"type": "number"}}},
    "required": ["scores"],
    "additionalProperties": False,
}
"""JSON schema of an LLM's reply."""


def as_teacher(teacher: Any) -> tuple[str, TextScorer]:
    """Return the name of a teacher and its scoring function.

    A teacher is a sentence-transformers ``CrossEncoder``; a cross-encoder, a document compressor or a chat model of
    LangChain; a node postprocessor or an LLM of LlamaIndex; ``"openai:MODEL"``; or a function of a query and texts.
    """
    scorer = framework_scorer(teacher)
    if scorer is not None:
        return scorer.name, scorer.score
    if isinstance(teacher, str) or any(hasattr(teacher, method) for method in ("invoke", "complete")):
        llm = as_llm(teacher)
        return llm.name, lambda query, texts: _ask(llm, query, texts)
    if callable(teacher):
        name = model_name(teacher)
        return name if name != type(teacher).__name__ else str(getattr(teacher, "__qualname__", name)), teacher
    raise ConfigError(f"a teacher is a cross-encoder, a reranker, an LLM or a function, got {shown(teacher)}")


def _tells(teacher: Any, name: str) -> bool:
    """Return whether the name tells a teacher from others of its class, or from another function of the same code."""
    vague = isinstance(teacher, partial | MethodType) or getattr(teacher, "__name__", "") == "<lambda>"
    return not vague and name != type(teacher).__name__


def _weights(name: str) -> list[str]:
    """Return the checksums of a model's weights where its name is a folder, whose files a training may replace."""
    try:
        return [sha256_of(path) for path in sorted(Path(name).glob("*")) if path.suffix in (".safetensors", ".bin")]
    except (OSError, ValueError):  # no name of a folder
        return []


def judge(
    index: Index,
    questions: Iterable[str],
    teacher: Any,
    out: str | Path,
    *,
    depth: int = JUDGED_HITS,
    name: str | None = None,
    progress: bool | None = None,
) -> RetrievalData:
    """Let a teacher judge the first hits of questions; returns training data for any ``fit``.

    A question's best hit is relevant if its score clearly exceeds most others (of twenty hits, the mean by two standard
    deviations); other questions are left out. The scores of each question are written to disk at once, so that no score
    is paid twice. The weight of words is not learned from such data: it favours questions whose words tell the answer,
    and a small teacher raised the weight to .81, which lost .10 on CoSQA.

    Args:
        index: The index that finds candidates, by its default search.
        questions: Questions from any source, such as recorded searches, a log, or an LLM.
        teacher: See :func:`as_teacher`.
        out: Folder of the scores (``scores.jsonl``), kept by the teacher's name.
        depth: Number of hits per question to judge, at least two.
        name: Name of the teacher; by default that of its model (and the checksum of local weights) or of its function.
            Needed to go on with a lambda, a ``partial``, a method or an object that tells no name of a model.
        progress: A progress bar; ``None`` shows it on a terminal.
    """
    if check_count("depth", depth) < 2:
        raise InputError(f"depth must be at least 2, got {depth}: a hit is judged by its lead over others")
    check_kind("name", name or "", str, "a str")
    own, score = as_teacher(teacher)
    told = bool(name) or _tells(teacher, own)
    name = name or own
    distinct = _distinct(questions)
    folder = check_path(out)
    make_folder(folder)
    known_as = " ".join([name, *_weights(name)])
    asked = [
        (
            f"q{number}",
            question,
            hits,
            key_of("\n\0".join((known_as, question, *(hit.document.content for hit in hits)))),
        )
        for number, (question, hits) in enumerate(zip(distinct, index.search(distinct, k=depth), strict=True))
        if len(hits) >= 2
    ]
    unscored, reply = 0, ""
    qrels: dict[str, dict[str, int]] = {}
    with AnswerLog(folder / "scores.jsonl") as kept:
        if not told and any(key in kept.answers for *_, key in asked):
            raise InputError(
                f"{folder} holds scores by {shown(name)}, a name that others may have, too: "
                f"add name={name!r} if this is the same teacher, else another name"
            )
        for query, question, hits, key in progress_bar(progress, asked, desc="Judging", delay=2):
            try:
                scores = _scored(kept, key, name, score, question, [hit.document.content for hit in hits])
            except _Unscored as error:
                unscored, reply = unscored + 1, error.reply
                continue
            best = int(np.argmax(scores))
            if scores[best] - np.mean(scores) > LEAST_LEAD * np.sqrt(len(scores) - 1) * np.std(scores):
                qrels[query] = {hits[best].id: 1}
    if unscored:
        message = f"{name} gave no scores for {unscored} of {len(asked)} questions; its last reply: {shown(reply)}"
        if unscored == len(asked):
            raise InputError(f"{message}; try another model, and another folder")
        log.warning("%s", message)
    queries = {f"q{number}": question for number, question in enumerate(distinct) if f"q{number}" in qrels}
    judgements = {"train": qrels} if qrels else {}
    return RetrievalData(f"judged by {name}", list(index.documents()), queries, judgements, judged_by=name)


def _scored(
    kept: AnswerLog, key: str, name: str, score: TextScorer, question: str, texts: Sequence[str]
) -> Sequence[float]:
    """Return the scores of a question, kept or new ones, which are kept; a refusal that may be paid is kept, too."""
    if key not in kept.answers:
        try:
            new = checked_scores(score(question, texts), len(texts), name)
            kept.add(LoggedAnswer(key, json.dumps([round(value, 6) for value in new])))
        except _Unscored as error:
            kept.add(LoggedAnswer(key, error.reply, refused=True))
        except RefusedError as error:
            if error.status not in WRONG_PROMPT:
                raise
            raise _Unscored(str(error)) from error
    answer = kept.answers[key]
    if answer.refused:
        raise _Unscored(answer.text)
    return checked_scores(json.loads(answer.text), len(texts), name)


def _distinct(questions: Any) -> list[str]:
    """Return the distinct questions."""
    if isinstance(questions, str) or not isinstance(questions, Iterable):
        raise InputError(f"questions must be a list of str, got {shown(questions)}")
    listed = list(questions)
    for question in listed:
        check_kind("a question", question, str, "a str")
    if not listed:
        raise InputError("there are no questions to judge; give at least one")
    return list(dict.fromkeys(listed))


class _Unscored(Exception):
    """A language model replied without scores."""

    def __init__(self, reply: str) -> None:
        super().__init__(reply)
        self.reply = reply


def _ask(llm: Any, query: str, texts: Sequence[str]) -> list[float]:
    """Let a language model grade all texts in one prompt."""
    numbered = "\n\n".join(f"Text {number}:\n{text}" for number, text in enumerate(texts, start=1))
    reply = llm.complete(JUDGE_PROMPT.format(query=query, texts=numbered), SCORES_SCHEMA).text
    json_list = re.search(r"\[[^\[\]]*\]", reply)
    try:
        return checked_scores(json.loads(json_list[0]) if json_list else None, len(texts), "")
    except (ValueError, InputError) as error:
        raise _Unscored(reply) from error
