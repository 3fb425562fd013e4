"""A log of a language model's answers: each is written to disk as soon as it arrives, so that none is paid twice."""

from __future__ import annotations

import json
import os
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from palmette.errors import InputError, LockedError, ReadOnlyError, StorageFullError
from palmette.types.text import is_unicode


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
        except Timeout as error:
            raise LockedError(
                f"another process writes to {path}: wait for its end, or choose another folder"
            ) from error
        except OSError as error:
            raise _cannot_write(path, error) from error
        try:
            self.answers = self._read()
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            self._lock.release()
            raise _cannot_write(path, error) from error
        except BaseException:
            self._lock.release()
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

    def close(self) -> None:
        """Close the file, and unlock it for other processes; a thread that writes ends its line first."""
        with self._writing:
            self._file.close()
        self._lock.release()

    def __enter__(self) -> AnswerLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _cannot_write(path: Path, error: OSError) -> ReadOnlyError:
    return ReadOnlyError(f"{path} cannot be read and written ({error.strerror}): allow it, or choose another folder")
