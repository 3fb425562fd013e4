"""Training pairs from a language model that writes questions about documents.

The file's order: options and cost, :func:`write_questions` and :func:`estimate_questions`, then their steps: documents
are cut into passages, calls are planned, replies are parsed, questions are checked, and the folder is written.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from palmette.config import Config, check_keys, check_path
from palmette.data import RetrievalData, drop_blanks, iter_documents
from palmette.encoder.sentences.splitting import estimate_tokens
from palmette.errors import ConfigError, DuplicateIdError, InputError, StorageFullError, shown
from palmette.index import Index
from palmette.learning.calls import AnswerLog, LoggedAnswer, PlannedCall, QuestionReport, ask, key_of
from palmette.machine.llm import LLM, as_llm
from palmette.machine.text import is_unicode
from palmette.methods.base import DEFAULT_ENCODER
from palmette.methods.space import SpaceModel
from palmette.sources.cutting import Cutter
from palmette.sources.passages import PassageOptions
from palmette.types import Document
from palmette.types.values import json_fault

REPLY_TOKENS = 30
"""Estimated number of tokens per question in a reply."""
QUESTION_KINDS = {
    "keywords": "search queries of two to six keywords that this passage is the best result for",
    "question": "natural questions that this passage answers",
    "paraphrase": "natural questions that this passage answers, in other words than its own: replace its nouns and "
    "verbs by synonyms or descriptions",
}
"""Instruction for each kind of questions."""
QUESTIONS_PROMPT = """Write {count} {kind}.
Each must make sense to somebody who does not see the text: name things, and never write "this passage".
Use the language of the text. Reply with JSON only: {{"questions": ["…"]}}

{text}"""
QUESTIONS_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"questions": {"type": "array", "items": {"type": "string"}}},
    "required": ["questions"],
    "additionalProperties": False,
}
"""JSON schema of a reply."""
LONGEST_WRITTEN_QUESTION = 300
"""Largest number of characters of a question; longer lines are remarks of the model."""
_ITEM = re.compile(r"^\s*(?:[-*•]|\(?\d{1,2}[.):]|Q\d*[.:])?\s*[\"“]?(.*?)[\"”]?,?\s*$")
_REFUSAL = re.compile(
    r"\b(?:I(?:'|’)m sorry|I apologi[sz]e|I can(?:'|’|no)t|I am (?:unable|not able)|As an AI)\b", re.I
)
ANSWERS = "answers.jsonl"
"""File of the answers, which tells that the folder's other files may be written anew."""
_FILES = ("corpus.jsonl", "queries.jsonl", "qrels/train.tsv")


class QuestionOptions(Config):
    """Kinds and number of the questions, and limits of their cost."""

    kinds: tuple[str, ...] = ("question", "keywords")
    """Kinds of questions: keywords, question, paraphrase."""
    count: Annotated[int, Field(ge=1, le=20)] = 2
    """Number of questions of each kind and passage, written in one call."""
    max_calls: Annotated[int, Field(ge=0)] | None = None
    """Largest number of calls in this run; ``None`` for all that are needed."""
    concurrency: Annotated[int, Field(ge=1, le=256)] = 4
    """Number of simultaneous calls."""
    round_trip: Annotated[int, Field(ge=0)] = 10
    """A question is kept if an untrained search ranks its passage among the first ``round_trip``; 0 keeps all."""
    seed: int = 0
    """Seed of the random order of passages, so that a limited run samples all documents."""

    def check(self) -> None:  # noqa: D102
        unknown = [kind for kind in self.kinds if kind not in QUESTION_KINDS]
        if unknown or not self.kinds:
            raise ConfigError(f"QuestionOptions: kinds are {', '.join(QUESTION_KINDS)}; got {unknown or 'none'}")
        if repeated := [kind for number, kind in enumerate(self.kinds) if kind in self.kinds[:number]]:
            raise ConfigError(
                f"QuestionOptions: kinds has {repeated[0]!r} twice, which would be asked twice: name it once"
            )


@dataclass(frozen=True)
class Estimate:
    """Estimated cost of a run."""

    passages: int
    calls: int
    """Number of calls without a logged answer."""
    tokens: int
    """Estimated number of tokens of their prompts and replies."""


def write_questions(
    documents: Any,
    llm: Any,
    out: str | Path,
    *,
    encoder: Any = DEFAULT_ENCODER,
    progress: bool | None = None,
    **options: Any,
) -> tuple[RetrievalData, QuestionReport]:
    """Let a language model write questions about documents.

    Returns training data for any ``fit``, and a report. The folder ``out`` receives the same data in BEIR format, and
    every answer as soon as it arrives (``answers.jsonl``): a run that was killed or reached its limits can be
    continued, and no answer is paid twice.

    Args:
        documents: A folder, a JSONL file or an iterable of documents; long documents are cut into passages.
        llm: A LangChain chat model, a LlamaIndex LLM, a callable ``prompt -> text``, or ``"openai:MODEL"`` for OpenAI
            (key in OPENAI_API_KEY) or any server of its protocol (OPENAI_BASE_URL).
        out: Folder of answers and pairs.
        encoder: Encoder of the untrained search that checks the questions.
        progress: A progress bar; ``None`` shows it on a terminal.
        options: Fields of :class:`QuestionOptions`.
    """
    check_keys("write_questions", options, [*QuestionOptions.names(), "encoder", "progress"])
    settings, model = QuestionOptions(**options), as_llm(llm)
    # 1. Whatever can be wrong is found before a call is paid for.
    folder = check_questions_folder(out, documents)
    passages = _cut(documents)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"out: {folder} cannot be made ({error.strerror}); name another folder") from error
    report = QuestionReport()
    index = None
    if settings.round_trip:
        index = Index.build(passages, SpaceModel.untrained(encoder), progress=progress)
    # 2. The calls, and the questions of their replies.
    with AnswerLog(folder / ANSWERS) as log:
        calls = _plan_calls(passages, settings)
        limits: dict[str, Any] = {name: getattr(settings, name) for name in ("concurrency", "max_calls")}
        ask(calls, model, log, report, schema=QUESTIONS_SCHEMA, progress=progress, **limits)
        questions = _collect(calls, model, log, report)
    # 3. Questions by which an untrained search finds one of their passages among the first become pairs.
    if index is not None:
        hits_of = index.search(list(questions), k=settings.round_trip) if questions else []
        index.close()
        keys_of = {question: {passages[row].key for row in rows} for question, rows in questions.items()}
        asked = len(questions)
        for (question, keys), hits in zip(keys_of.items(), hits_of, strict=True):
            if keys.isdisjoint(hit.id for hit in hits):
                del questions[question]
        report.not_found = asked - len(questions)
    # 4. The folder, in BEIR format.
    queries = {f"q{number}": question for number, question in enumerate(questions)}
    judged = zip(queries, questions.values(), strict=True)
    qrels = {query: {passages[row].key: 1 for row in rows} for query, rows in judged}
    data = RetrievalData(folder.name, passages, queries, {"train": qrels} if qrels else {})
    report.kept = len(questions)
    write_beir(data, folder)
    return data, report


def estimate_questions(documents: Any, out: str | Path, llm: Any, **options: Any) -> Estimate:
    """Estimate the calls and tokens of :func:`write_questions` without a call; logged answers cost nothing."""
    check_keys("estimate_questions", options, QuestionOptions.names())
    settings, model = QuestionOptions(**options), as_llm(llm)
    path = check_questions_folder(out, documents) / ANSWERS
    passages = _cut(documents)
    known: Mapping[str, LoggedAnswer] = {}
    if path.exists():
        with AnswerLog(path) as log:
            known = log.answers
    calls = _plan_calls(passages, settings)
    tokens = [call.tokens for call in calls if key_of(model.name, call.prompt) not in known]
    return Estimate(len(passages), len(tokens), sum(tokens))


def _cut(documents: Any) -> list[Document]:
    """Return documents of one passage each, cut as by an index; passages of a long document are numbered in their ids.

    Their tokens are estimated, so that the cost can be told without an encoder.
    """
    whole = list(drop_blanks(iter_documents(documents), lambda document: document.content))
    if not whole:
        raise InputError("there are no documents to ask about; give at least one")
    passages = [
        replace(passage, id=f"{stored.document.key}#{number}") if len(stored.passages) > 1 else passage
        for stored in Cutter(PassageOptions(), estimate_tokens).cut(whole)
        for number, passage in enumerate(stored.parts(), start=1)
    ]
    _check(passages)
    return passages


def _check(passages: Sequence[Document]) -> None:
    """Raise if the data could not be written or read again, before a call is paid for it."""
    known = set[str]()
    for passage in passages:
        key = passage.key
        if key in known:
            raise DuplicateIdError(
                f"document id {shown(key)} is there twice (the passages of a long document 'a' are 'a#1', 'a#2', …); "
                "give the documents other ids"
            )
        if key != key.strip() or re.search(r"[\t\r\n]", key) or not is_unicode(key):
            raise InputError(
                f"document id {shown(key)} cannot be written to qrels/train.tsv: give it an id without tabs, line "
                "breaks, outer blanks and halves of surrogate pairs"
            )
        if fault := json_fault(dict(passage.metadata), ""):
            raise InputError(f"document {shown(key)}: metadata must hold JSON values only: {fault}")
        known.add(key)


def _plan_calls(passages: Sequence[Document], options: QuestionOptions) -> list[PlannedCall]:
    """Plan all calls: passages in random order, each with every kind of question; those of equal text share a call."""
    order = list(range(len(passages)))
    random.Random(options.seed).shuffle(order)
    calls = dict[str, PlannedCall]()  # by the prompt
    for row in order:
        for kind in options.kinds:
            text = f"Passage:\n{passages[row].content}"
            prompt = QUESTIONS_PROMPT.format(count=options.count, kind=QUESTION_KINDS[kind], text=text)
            if (equal := calls.get(prompt)) is not None:
                calls[prompt] = replace(equal, rows=(*equal.rows, row))
                continue
            tokens = estimate_tokens([prompt])[0] + REPLY_TOKENS * options.count
            calls[prompt] = PlannedCall(prompt, (row,), tokens)
    return list(calls.values())


def parse_questions(text: str) -> list[str]:
    """Parse questions from a reply: JSON anywhere in it, or else its lines without numbers, marks and quotes."""
    for opening, closing in ("{}", "[]"):
        start, end = text.find(opening), text.rfind(closing)
        if 0 <= start < end:
            try:
                value = json.loads(text[start : end + 1])
            except (ValueError, RecursionError):
                continue
            listed = value.get("questions") if isinstance(value, dict) else value
            if isinstance(listed, list):
                questions = [" ".join(item.split()) for item in listed if isinstance(item, str)]
                return [text for text in questions if 0 < len(text) <= LONGEST_WRITTEN_QUESTION and is_unicode(text)]
    if text.lstrip().startswith(("{", "[", "`")):  # incomplete JSON
        return []
    lines = [" ".join(match[1].split()) for line in text.splitlines() if (match := _ITEM.match(line))]
    lines = [line for line in lines if 2 < len(line) <= LONGEST_WRITTEN_QUESTION and is_unicode(line)]
    return [line for line in lines if not line.endswith((":", "{", "[", "`"))]


def _collect(
    calls: Sequence[PlannedCall], model: LLM, log: AnswerLog, report: QuestionReport
) -> dict[str, tuple[int, ...]]:
    """Return each question once, with its passages, and drop questions that were written for different passages."""
    collected = dict[str, tuple[str, tuple[int, ...]]]()  # question and passages by the normalised question
    ambiguous = set[str]()
    for call in calls:
        if (answer := log.answers.get(key_of(model.name, call.prompt))) is None:
            continue
        apology = "{" not in answer.text and _REFUSAL.search(answer.text[:200])  # and no JSON
        if answer.refused or apology:
            report.refused += 1
            continue
        questions = parse_questions(answer.text)
        report.unusable += not questions
        for question in questions:
            normalised = question.casefold().strip(" ?.!")
            if normalised in collected:
                report.repeated += 1
                if not set(collected[normalised][1]) & set(call.rows):
                    ambiguous.add(normalised)
            else:
                collected[normalised] = question, call.rows
    report.repeated += len(ambiguous)
    return dict(value for normalised, value in collected.items() if normalised not in ambiguous)


def check_questions_folder(out: str | Path, documents: Any) -> Path:
    """Return the path of ``out``; raise if it holds what a run must not replace, or is read as documents."""
    folder = check_path(out)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"out: {folder} is a file; name a folder, which need not exist")
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
