"""Calls of a language model, several at once and within limits.

Each answer is written to disk as soon as it arrives, so that none is paid twice.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from palmette.errors import InputError, LockedError, ReadOnlyError, StorageFullError, StoreError
from palmette.machine.llm import LLM, LLMError, RefusedError
from palmette.machine.progress import progress_bar
from palmette.machine.text import is_unicode

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


def key_of(*parts: str) -> str:
    """Digest the name of a model and what it is asked, as the key of an answer in the log.

    Another digest would have every answer of the logs that there are paid for again.
    """
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def ask(
    calls: Sequence[PlannedCall],
    model: LLM,
    log: AnswerLog,
    report: QuestionReport,
    *,
    schema: Mapping[str, Any],
    concurrency: int,
    max_calls: int | None,
    progress: bool | None,
) -> None:
    """Make the calls that have no logged answer, within the limit.

    Raises the error of a call if the key is wrong, or if there is no answer at all: the first ``concurrency`` calls
    have failed, or all have. Other errors are reported.
    """
    unanswered = [call for call in calls if key_of(model.name, call.prompt) not in log.answers]
    report.reused, report.left = len(calls) - len(unanswered), len(unanswered)
    running = dict[Future[int], PlannedCall]()
    first_error: BaseException | None = None
    made = in_a_row = 0  # calls; those in a row that failed for other reasons than their prompt

    def answer(call: PlannedCall) -> int:
        reply = model.complete(call.prompt, schema)
        logged = LoggedAnswer(key_of(model.name, call.prompt), reply.text, reply.tokens or call.tokens, reply.refused)
        log.add(logged)
        return logged.tokens

    with progress_bar(progress, total=len(unanswered), desc="Asking", unit="call", delay=2, leave=False) as bar:
        try:
            waiting = unanswered[::-1]
            while waiting or running:
                # 1. Begin as many calls as may run at a time, until a limit is reached.
                while waiting and len(running) < concurrency:
                    if in_a_row >= max(concurrency, MOST_FAILURES):
                        report.errors.append(f"{in_a_row} calls in a row failed: the others were not made")
                        waiting.clear()
                    elif made == max_calls:
                        waiting.clear()
                    else:
                        call = waiting.pop()
                        running[_in_thread(answer, call)] = call
                        made += 1
                # 2. Wait for at least one of them.
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    del running[future]
                    bar.update()
                    error = future.exception()
                    if error is None:
                        report.calls += 1
                        report.left -= 1
                        report.tokens += future.result()
                        in_a_row = 0
                        continue
                    first_error = first_error or error
                    in_a_row += _report_failure(error, first_error, report, concurrency)
            if first_error is not None and not report.calls and not report.reused:
                raise first_error
        except BaseException:
            model.stop()
            wait(running, timeout=SECONDS_TO_END)
            raise


def _report_failure(error: BaseException, first: BaseException, report: QuestionReport, concurrency: int) -> bool:
    """Report an error, or raise it where all calls will have it; return whether it has other reasons than a prompt."""
    report.failed += 1
    if isinstance(error, StoreError) or not isinstance(error, Exception):
        raise error
    status = error.status if isinstance(error, RefusedError) else 0
    if not report.calls and status in WRONG_KEY:
        raise error
    if not report.calls and not report.reused and report.failed >= concurrency:
        raise first
    if (description := f"{type(error).__name__}: {error}") not in report.errors:
        report.errors.append(description)
    return isinstance(error, LLMError) and status not in WRONG_PROMPT


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


@dataclass(frozen=True)
class LoggedAnswer:
    """A logged answer."""

    key: str
    """Digest of model and prompt."""
    text: str
    tokens: int = 0
    refused: bool = False


class AnswerLog:
    """Answers in a file of JSON lines, locked by one process at a time.

    A killed process leaves at most one incomplete line, which the next process removes.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._writing = path, threading.Lock()
        self._lock = FileLock(f"{path}.lock", timeout=0)
        try:
            self._lock.acquire()
            self.answers = self._read()
            self._file = path.open("ab", buffering=0)
        except BaseException as error:
            self._lock.release()
            if isinstance(error, Timeout):
                raise LockedError(
                    f"another process writes to {path}: wait for its end, or choose another folder"
                ) from error
            if isinstance(error, OSError):
                raise ReadOnlyError(
                    f"{path} cannot be read and written ({error.strerror}): allow it, or choose another folder"
                ) from error
            raise

    def _read(self) -> dict[str, LoggedAnswer]:
        """Read all answers, and remove an incomplete last line."""
        answers: dict[str, LoggedAnswer] = {}
        if not self.path.exists():
            return answers
        data = self.path.read_bytes()
        end = data.rfind(b"\n") + 1  # of the last complete line
        if end < len(data):
            with self.path.open("r+b") as file:
                file.truncate(end)
                os.fsync(file.fileno())
        for number, line in enumerate(data[:end].splitlines(), start=1):
            try:
                answer = LoggedAnswer(**json.loads(line))
            except (TypeError, ValueError) as error:
                raise InputError(
                    f"{self.path}:{number} is no answer ({error}): remove the line, and it is asked for anew"
                ) from error
            answers[answer.key] = answer
        return answers

    def add(self, answer: LoggedAnswer) -> None:
        """Write an answer and flush it to the disk."""
        escaped = not is_unicode(answer.text)  # UTF-8 cannot encode half of a surrogate pair
        line = json.dumps(asdict(answer), ensure_ascii=escaped).encode() + b"\n"
        with self._writing:
            size = self._file.tell()
            try:
                self._file.write(line)
                os.fsync(self._file.fileno())
            except OSError as error:
                with suppress(OSError):  # remove an incomplete line
                    os.ftruncate(self._file.fileno(), size)
                raise StorageFullError(
                    f"{self.path} cannot be written ({error.strerror}): make room and go on"
                ) from error
            self.answers[answer.key] = answer

    def __enter__(self) -> AnswerLog:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file, and unlock it for other processes; a thread that writes ends its line first."""
        with self._writing:
            self._file.close()
        self._lock.release()
