"""Training pairs from a language model that writes questions about documents."""

from __future__ import annotations

import hashlib
import json
import random
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from palmette.config import Config, check_path
from palmette.data import RetrievalData, drop_blanks, iter_documents
from palmette.encoder.splitting import estimate_tokens
from palmette.errors import ConfigError, InputError, StoreError
from palmette.index import Index
from palmette.learning.answers import AnswerLog, LoggedAnswer
from palmette.learning.llm import LLM, as_llm
from palmette.learning.replies import KINDS, SCHEMA, is_refusal, parse_questions, prompt_for
from palmette.methods.space import SpaceModel
from palmette.model import DEFAULT_ENCODER
from palmette.progress import progress_bar
from palmette.sources.cutting import Cutter
from palmette.sources.passages import PassageOptions
from palmette.types import Document

REPLY_TOKENS = 30
"""Estimated number of tokens per question in a reply."""


class QuestionOptions(Config):
    """Kinds and number of the questions, and limits of their cost."""

    kinds: tuple[str, ...] = ("question", "keywords")
    """Kinds of questions: keywords, question, paraphrase, related (over two passages)."""
    count: Annotated[int, Field(ge=1, le=20)] = 2
    """Number of questions of each kind and passage, written in one call."""
    max_calls: Annotated[int, Field(ge=0)] | None = None
    """Largest number of calls in this run; ``None`` for all that are needed."""
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    """Largest number of tokens of prompts and replies in this run."""
    concurrency: Annotated[int, Field(ge=1, le=256)] = 4
    """Number of simultaneous calls."""
    round_trip: Annotated[int, Field(ge=0)] = 10
    """A question is kept if an untrained search ranks its passage among the first ``round_trip``; 0 keeps all."""
    seed: int = 0
    """Seed of the random order of passages, so that a limited run samples all documents."""

    def check(self) -> None:  # noqa: D102
        unknown = [kind for kind in self.kinds if kind not in KINDS]
        if unknown or not self.kinds:
            raise ConfigError(f"QuestionOptions: kinds are {', '.join(KINDS)}; got {unknown or 'none'}")


@dataclass(frozen=True)
class Estimate:
    """Estimated cost of a run."""

    passages: int
    calls: int
    """Number of calls without a logged answer."""
    tokens: int
    """Estimated number of tokens of their prompts and replies."""


@dataclass
class QuestionReport:
    """Counts of calls, tokens and questions of one run of :func:`write_questions`."""

    calls: int = 0
    tokens: int = 0
    reused: int = 0
    """Answers of earlier runs."""
    refused: int = 0
    """Calls that the model declined."""
    unusable: int = 0
    """Replies without a question."""
    repeated: int = 0
    """Questions dropped because they repeat an earlier question, of the same or another passage."""
    not_found: int = 0
    """Questions dropped because an untrained search does not find their passage."""
    kept: int = 0
    failed: int = 0
    """Calls that raised an error; a further run repeats them."""
    left: int = 0
    """Calls without an answer, since they failed or exceeded the limits."""
    errors: list[str] = field(default_factory=list)
    """Distinct errors of the calls that failed."""


@dataclass(frozen=True)
class _Call:
    """A prompt, and the passages that its questions are about."""

    prompt: str
    rows: tuple[int, ...]
    """Numbers of the passages."""
    tokens: int
    """Estimated number of tokens of prompt and reply."""


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
    settings, model = QuestionOptions.from_dict(options), as_llm(llm)
    passages, folder = _cut(documents), check_path(out)
    folder.mkdir(parents=True, exist_ok=True)
    report = QuestionReport()
    index = None
    if settings.round_trip or "related" in settings.kinds:
        index = Index.build(passages, SpaceModel.untrained(encoder), progress=progress)
    with AnswerLog(folder / "answers.jsonl") as log:
        calls = _plan_calls(passages, settings, index)
        _ask(calls, model, log, settings, report, progress)
        questions = _collect(calls, model, log, report)
    checked = _retrievable(questions, passages, index, settings.round_trip, report)
    if index is not None:
        index.close()
    data = _to_data(checked, passages, folder.name)
    report.kept = len(checked)
    _write_beir(data, folder)
    return data, report


def estimate_questions(documents: Any, out: str | Path, llm: Any, **options: Any) -> Estimate:
    """Estimate the calls and tokens of :func:`write_questions` without a call; logged answers cost nothing."""
    settings, model = QuestionOptions.from_dict(options), as_llm(llm)
    passages, path = _cut(documents), check_path(out) / "answers.jsonl"
    known: Mapping[str, LoggedAnswer] = {}
    if path.exists():
        with AnswerLog(path) as log:
            known = log.answers
    plain = settings.replace(kinds=tuple("question" if kind == "related" else kind for kind in settings.kinds))
    calls = [call for call in _plan_calls(passages, plain, None) if _key(model, call) not in known]
    return Estimate(len(passages), len(calls), sum(call.tokens for call in calls))


def _cut(documents: Any) -> list[Document]:
    """Return documents of one passage each, cut as by an index; passages of a long document are numbered in their ids.

    Their tokens are estimated, so that the cost can be told without an encoder.
    """
    whole = list(drop_blanks(iter_documents(documents), lambda document: document.content))
    if not whole:
        raise InputError("there are no documents to ask about; give at least one")
    return [
        replace(passage, id=f"{stored.document.key}#{number}") if len(stored.passages) > 1 else passage
        for stored in Cutter(PassageOptions(), estimate_tokens).cut(whole)
        for number, passage in enumerate(stored.parts(), start=1)
    ]


def _plan_calls(passages: Sequence[Document], options: QuestionOptions, index: Index | None) -> list[_Call]:
    """Plan all calls: passages in random order, each with every kind of question."""
    order = list(range(len(passages)))
    random.Random(options.seed).shuffle(order)
    neighbours = _nearest(passages, index) if "related" in options.kinds and index is not None else {}
    calls = []
    for row in order:
        for kind in options.kinds:
            if kind == "related" and row not in neighbours:
                continue
            rows = (row, neighbours[row]) if kind == "related" else (row,)
            prompt = prompt_for(kind, [passages[passage].content for passage in rows], options.count)
            tokens = estimate_tokens([prompt])[0] + REPLY_TOKENS * options.count
            calls.append(_Call(prompt, rows, tokens))
    return calls


def _nearest(passages: Sequence[Document], index: Index) -> dict[int, int]:
    """Return for each passage its nearest other passage, by an untrained search for its first words."""
    rows = {passage.key: row for row, passage in enumerate(passages)}
    texts = [" ".join(passage.content.split()[:60]) for passage in passages]
    nearest = {}
    for row, hits in enumerate(index.search(texts, k=2, lexical=0)):
        other = next((rows[hit.id] for hit in hits if rows[hit.id] != row), None)
        if other is not None:
            nearest[row] = other
    return nearest


def _key(model: LLM, call: _Call) -> str:
    """Digest model and prompt, as the key of an answer in the log."""
    return hashlib.sha256(f"{model.name}\n{call.prompt}".encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _ask(
    calls: Sequence[_Call],
    model: LLM,
    log: AnswerLog,
    options: QuestionOptions,
    report: QuestionReport,
    progress: bool | None,
) -> None:
    """Make the calls that have no logged answer, within the limits."""
    unanswered = [call for call in calls if _key(model, call) not in log.answers]
    report.reused, report.left = len(calls) - len(unanswered), len(unanswered)
    stopped = threading.Event()

    def ask(call: _Call) -> int:
        if stopped.is_set():
            return 0
        reply = model.complete(call.prompt, SCHEMA)
        answer = LoggedAnswer(_key(model, call), reply.text, reply.tokens or call.tokens, reply.refused)
        log.add(answer)
        return answer.tokens

    bar = progress_bar(progress, total=len(unanswered), desc="Asking", unit="call", delay=2, leave=False)
    running = dict[Future[int], _Call]()
    with bar, ThreadPoolExecutor(options.concurrency) as pool:
        try:
            for number, call in enumerate(unanswered):
                spent = report.tokens + sum(other.tokens for other in running.values())
                if options.max_calls is not None and number >= options.max_calls:
                    break
                if options.max_tokens is not None and spent + call.tokens > options.max_tokens:
                    break
                running[pool.submit(ask, call)] = call
                if len(running) >= options.concurrency:
                    _finish(running, report, bar)
            while running:
                _finish(running, report, bar)
        except BaseException:
            stopped.set()
            for future in running:
                future.cancel()
            raise


def _finish(running: dict[Future[int], _Call], report: QuestionReport, bar: Any) -> None:
    """Wait for at least one call, and record it in the report.

    An error raises if no call has succeeded yet, or if the log cannot be written.
    """
    for future in wait(running, return_when=FIRST_COMPLETED).done:
        del running[future]
        bar.update()
        error = future.exception()
        if error is None:
            report.calls += 1
            report.left -= 1
            report.tokens += future.result()
            continue
        report.failed += 1
        if report.calls == 0 or isinstance(error, StoreError) or not isinstance(error, Exception):
            raise error
        if (description := f"{type(error).__name__}: {error}") not in report.errors:
            report.errors.append(description)


def _collect(calls: Sequence[_Call], model: LLM, log: AnswerLog, report: QuestionReport) -> dict[str, tuple[int, ...]]:
    """Return each question once, with its passages, and drop questions that were written for different passages."""
    collected = dict[str, tuple[str, tuple[int, ...]]]()  # question and passages by the normalised question
    ambiguous = set[str]()
    for call in calls:
        if (answer := log.answers.get(_key(model, call))) is None:
            continue
        if answer.refused or is_refusal(answer.text):
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


def _retrievable(
    questions: Mapping[str, tuple[int, ...]],
    passages: Sequence[Document],
    index: Index | None,
    depth: int,
    report: QuestionReport,
) -> dict[str, tuple[int, ...]]:
    """Keep the questions for which an untrained search ranks one of their passages among the first ``depth``."""
    if not depth or index is None or not questions:
        return dict(questions)
    rows = {passage.key: row for row, passage in enumerate(passages)}
    retrievable = {}
    for (question, passage_rows), hits in zip(questions.items(), index.search(list(questions), k=depth), strict=True):
        if {rows[hit.id] for hit in hits}.intersection(passage_rows):
            retrievable[question] = passage_rows
    report.not_found = len(questions) - len(retrievable)
    return retrievable


def _to_data(questions: Mapping[str, tuple[int, ...]], passages: Sequence[Document], name: str) -> RetrievalData:
    """Convert questions with their passages to training data."""
    queries = {f"q{number}": question for number, question in enumerate(questions)}
    judged = zip(queries, questions.values(), strict=True)
    qrels = {query: {passages[row].key: 1 for row in rows} for query, rows in judged}
    return RetrievalData(name, passages, queries, {"train": qrels} if qrels else {})


def _write_beir(data: RetrievalData, folder: Path) -> None:
    """Write data in BEIR format; each file replaces that of an earlier run in one step."""
    corpus = [{"_id": d.key, "text": d.content, "metadata": dict(d.metadata)} for d in data.corpus]
    queries = [{"_id": key, "text": text} for key, text in data.queries.items()]
    judged = data.qrels.get("train", {}).items()
    rows = [f"{query}\t{document}\t{grade}" for query, grades in judged for document, grade in grades.items()]
    (folder / "qrels").mkdir(exist_ok=True)
    for name, lines in (
        ("corpus.jsonl", [json.dumps(record, ensure_ascii=False) for record in corpus]),
        ("queries.jsonl", [json.dumps(record, ensure_ascii=False) for record in queries]),
        ("qrels/train.tsv", ["query-id\tcorpus-id\tscore", *rows]),
    ):
        draft = folder / f"{name}.new"
        draft.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", errors="surrogatepass")
        draft.replace(folder / name)
