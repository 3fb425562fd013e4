"""Calls of a language model, several at once and within limits; each answer is on disk as soon as it arrives."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any

from palmette.errors import StoreError
from palmette.learning.answers import AnswerLog, LoggedAnswer
from palmette.learning.llm import LLM, LLMError, RefusedError
from palmette.learning.replies import QUESTIONS_SCHEMA
from palmette.machine.progress import progress_bar

SECONDS_TO_END = 1.0
"""Seconds that running calls have to end after an interruption or an error; then nobody waits for them."""
MOST_FAILURES = 8
"""Calls in a row that a server may fail, each after all its attempts, before no further one is made."""
WRONG_KEY = (401, 403)
"""HTTP statuses of a wrong key."""
WRONG_PROMPT = (400, 413, 422)
"""HTTP statuses of a prompt that a server does not take; others concern all calls."""


@dataclass
class QuestionReport:
    """Counts of calls, tokens and questions of one run of :func:`~palmette.learning.questions.write_questions`."""

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
class PlannedCall:
    """A prompt, and the passages that its questions are about."""

    prompt: str
    rows: tuple[int, ...]
    """Numbers of the passages."""
    tokens: int
    """Estimated number of tokens of prompt and reply."""


def key_of(model: LLM, call: PlannedCall) -> str:
    """Digest model and prompt, as the key of an answer in the log."""
    return hashlib.sha256(f"{model.name}\n{call.prompt}".encode("utf-8", "surrogatepass")).hexdigest()[:32]


def ask(
    calls: Sequence[PlannedCall],
    model: LLM,
    log: AnswerLog,
    report: QuestionReport,
    *,
    concurrency: int,
    max_calls: int | None,
    max_tokens: int | None,
    progress: bool | None,
) -> None:
    """Make the calls that have no logged answer, within the limits.

    Raises the error of a call if the key is wrong, or if there is no answer at all: the first ``concurrency`` calls
    have failed, or all have. Other errors are reported.
    """
    unanswered = [call for call in calls if key_of(model, call) not in log.answers]
    report.reused, report.left = len(calls) - len(unanswered), len(unanswered)

    def answer(call: PlannedCall) -> int:
        reply = model.complete(call.prompt, QUESTIONS_SCHEMA)
        logged = LoggedAnswer(key_of(model, call), reply.text, reply.tokens or call.tokens, reply.refused)
        log.add(logged)
        return logged.tokens

    with progress_bar(progress, total=len(unanswered), desc="Asking", unit="call", delay=2, leave=False) as bar:
        run = _Run(report, concurrency, bar)
        try:
            for number, call in enumerate(unanswered):
                spent = report.tokens + sum(other.tokens for other in run.running.values())
                if max_calls is not None and number >= max_calls:
                    break
                if max_tokens is not None and spent + call.tokens > max_tokens:
                    break
                if run.in_a_row >= max(concurrency, MOST_FAILURES):
                    report.errors.append(f"{run.in_a_row} calls in a row failed: the others were not made")
                    break
                run.running[_in_thread(answer, call)] = call
                if len(run.running) >= concurrency:
                    run.finish()
            while run.running:
                run.finish()
            if run.error is not None and not report.calls and not report.reused:
                raise run.error
        except BaseException:
            model.stop()
            wait(run.running, timeout=SECONDS_TO_END)
            raise


def _in_thread(function: Callable[[PlannedCall], int], call: PlannedCall) -> Future[int]:
    """Run a function in a thread that nobody has to wait for, the end of the program included."""
    future: Future[int] = Future()

    def run() -> None:
        try:
            future.set_result(function(call))
        except BaseException as error:  # raised or reported by the thread that waits
            future.set_exception(error)

    threading.Thread(target=run, name="palmette ask", daemon=True).start()
    return future


class _Run:
    """Calls that are running, and what becomes of them."""

    def __init__(self, report: QuestionReport, concurrency: int, bar: Any) -> None:
        self.report, self.concurrency, self.bar = report, concurrency, bar
        self.running = dict[Future[int], PlannedCall]()
        self.error: Exception | None = None
        """Error of the first call that failed."""
        self.in_a_row = 0
        """Calls in a row that failed for other reasons than their prompt."""

    def finish(self) -> None:
        """Wait for at least one call, and record it in the report."""
        for future in wait(self.running, return_when=FIRST_COMPLETED).done:
            del self.running[future]
            self.bar.update()
            error = future.exception()
            if error is not None:
                self._fail(error)
                continue
            self.report.calls += 1
            self.report.left -= 1
            self.report.tokens += future.result()
            self.in_a_row = 0

    def _fail(self, error: BaseException) -> None:
        report = self.report
        report.failed += 1
        if isinstance(error, StoreError) or not isinstance(error, Exception):
            raise error
        self.error = self.error or error
        status = error.status if isinstance(error, RefusedError) else 0
        if not report.calls and status in WRONG_KEY:
            raise error
        if not report.calls and not report.reused and report.failed >= self.concurrency:
            raise self.error
        if isinstance(error, LLMError) and status not in WRONG_PROMPT:
            self.in_a_row += 1
        if (description := f"{type(error).__name__}: {error}") not in report.errors:
            report.errors.append(description)
