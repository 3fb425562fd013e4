"""A server of OpenAI's protocol: its address, its key, time limits, retries and rates, for chat and for embeddings.

    openai:MODEL                      the server that OPENAI_BASE_URL names, OpenAI's own by default
    openai:MODEL@https://host/v1      another server of the protocol

The key is read from OPENAI_API_KEY (a reranker's from PALMETTE_RERANK_KEY) whenever a request is sent. It is kept in no
object, and is cut out of messages.
"""

from __future__ import annotations

import json
import os
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from palmette.config import parse_json
from palmette.errors import ConfigError, RemoteError, shown

OPENAI_URL = "https://api.openai.com/v1"
"""Server of ``openai:MODEL`` where the variable OPENAI_BASE_URL names no other."""
KEY = "OPENAI_API_KEY"
"""Variable that holds the key of a server of chat or embeddings."""
RERANK_KEY = "PALMETTE_RERANK_KEY"
"""Variable that holds the key of a server that reranks."""
ALLOW_HTTP = "PALMETTE_ALLOW_HTTP"
"""Variable that, as 1, allows requests without encryption to other machines."""
ATTEMPTS = 6
"""Times that a request is sent before its failure counts."""
FIRST_WAIT = 1.0
"""Seconds before the second attempt; each further wait is twice as long, with some chance."""
LONGEST_WAIT = 60.0
"""Most seconds between two attempts, whatever a server's Retry-After says."""
SILENCE = 120.0
"""Seconds until a server that sends nothing has failed."""
SLOWEST = 300.0
"""Seconds that one reply may take from its head on, however steadily it comes."""
LARGEST_REPLY = 1 << 27
"""Bytes of the largest reply that is read: twice what 64 vectors of 65,536 numbers take."""
FATAL = (400, 401, 403, 404, 405, 413, 422)
"""HTTP statuses that another attempt does not mend."""
NO_MONEY = "insufficient_quota"
"""Code of a 429 that no waiting mends."""
LOOPBACK = re.compile(r"localhost|127(\.\d{1,3}){3}|::1")
"""Hosts that are this machine, to which no encryption is needed."""


class Reply(NamedTuple):
    """Status of the last attempt, and the body: what ``read`` made of it where the status is 200."""

    status: int
    content: Any


class StatusError(Exception):
    """A status other than 200 in place of a stream."""

    def __init__(self, reply: Reply, seconds: float = 0.0) -> None:
        super().__init__(f"status {reply.status}")
        self.reply, self.seconds = reply, seconds


class Stop(threading.Event):
    """Ends a running stream from another thread."""

    end: Callable[[], None] | None = None
    """Breaks the connection of the stream."""

    def set(self) -> None:
        """Send no further request, and break the connection of a running one."""
        super().set()
        if self.end is not None:
            self.end()


@dataclass
class Rates:
    """Most requests and tokens a minute; ``None`` for no limit. Requests are spread evenly over the minute."""

    requests: float | None = None
    tokens: float | None = None

    def __post_init__(self) -> None:
        self._lock, self._next = threading.Lock(), 0.0

    def wait(self, tokens: int) -> None:
        """Sleep until a request of so many tokens may be sent."""
        seconds = max(60 / self.requests if self.requests else 0.0, 60 * tokens / self.tokens if self.tokens else 0.0)
        if not seconds:
            return
        with self._lock:
            start = max(time.monotonic(), self._next)
            self._next = start + seconds
        time.sleep(max(0.0, start - time.monotonic()))


def split_name(name: str) -> tuple[str, str | None]:
    """Split ``openai:MODEL`` or ``openai:MODEL@URL`` into the model and the URL."""
    match = re.fullmatch(r"openai:\s*(\S(?:.*?\S)??)\s*(?:@(https?://\S*))?\s*", name)
    if match is None:
        raise ConfigError(
            f"{shown(name)} names no model of a server: write 'openai:MODEL', or 'openai:MODEL@https://host/v1'"
        )
    # an address without its scheme must not become part of a model's name: texts would go to the default server
    address = match[1][1:].partition("@")[2] if match[2] is None else ""
    if re.search(r"://|:\d+(/|$)|/v\d+/?$|^localhost|^(\d+\.){3}\d+|\.[a-z]{2,}(/|$)", address):
        raise ConfigError(f"{shown(address)} in {shown(name)} is no address of a server: write it as https://host/v1")
    return match[1], match[2]


def default_url() -> str:
    """Return the URL of the server that the environment names."""
    return os.environ.get("OPENAI_BASE_URL") or OPENAI_URL


def is_loopback(url: str) -> bool:
    """Return whether a URL's host is this machine."""
    return LOOPBACK.fullmatch(urlsplit(url).hostname or "") is not None


def same_server(first: str, second: str) -> bool:
    """Return whether two URLs have the same scheme, host and port."""
    first_url, second_url = (urlsplit(url) for url in (first, second))
    return (first_url.scheme, first_url.netloc.lower()) == (second_url.scheme, second_url.netloc.lower())


def check_url(url: str) -> str:
    """Return a server's URL without its last slash; raise where it holds a key, or texts would travel in the clear."""
    if "@" in url or "?" in url or "#" in url:
        variables = f"{KEY}, of a reranker {RERANK_KEY}"
        raise ConfigError(f"the URL of a model server holds a key, which errors would print: set {variables}")
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError(f"{shown(url)} is no URL of a model server: write it as https://host/v1")
    if parts.scheme == "http" and not is_loopback(url) and os.environ.get(ALLOW_HTTP) != "1":
        raise ConfigError(
            f"{url} is not encrypted: texts and the key would cross the network in the clear. Use https://, or set "
            f"{ALLOW_HTTP}=1 where the network is yours"
        )
    return url.rstrip("/")


class Endpoint:
    """One method of a server, such as ``/embeddings``; threads may share it. The server is trusted to be one.

    Args:
        path: The method, which is appended to the URL.
        base_url: The server's URL; by default the one that the environment names.
        error: Class of the errors that are raised.
        send_key: Whether the key is sent.
        key: Environment variable that holds the key.
        rates: Limits of rate, if any.
    """

    def __init__(
        self,
        path: str,
        base_url: str | None = None,
        *,
        error: type[RemoteError] = RemoteError,
        send_key: bool = True,
        key: str = KEY,
        rates: Rates | None = None,
    ) -> None:
        self.base_url = check_url(base_url or default_url())
        self.url, self.error, self.send_key = self.base_url + path, error, send_key
        self.key = key
        self.rates = rates or Rates()
        self._client: Any = None
        self._process = 0

    def post(
        self,
        body: Mapping[str, Any],
        read: Callable[[Any], Any],
        *,
        tokens: int = 0,
        patience: float = float("inf"),
        stopped: threading.Event | None = None,
    ) -> Reply:
        """Send a request, again where that may help.

        ``read`` makes the content of a reply's JSON, and raises ValueError, KeyError, IndexError, TypeError or
        AttributeError where that is not whole. ``tokens`` count towards the limits of rate. All attempts together take
        ``patience`` seconds at most, and none is sent once ``stopped`` is set.

        Raises:
            RemoteError: Every attempt failed, or the server leads elsewhere. A status that another attempt does not
                mend is returned.
        """
        import httpx2

        end, wait, stopped = time.monotonic() + patience, FIRST_WAIT, stopped or threading.Event()
        for attempt in range(1, ATTEMPTS + 1):
            key = read_key(self.key) if self.send_key else ""
            self.rates.wait(tokens)
            if stopped.is_set():
                raise self.error("the call was given up, since its run has ended")
            status, asked_wait = 0, 0.0
            try:
                until = min(time.monotonic() + SLOWEST, end)
                with self._open(body, key, until) as response:
                    facts = _parsed(self._whole(response, until))
                status, retry_after = response.status_code, response.headers.get("retry-after", "")
                if status in FATAL or _code(facts) == NO_MONEY:
                    return Reply(status, facts)
                if status == 200:
                    if facts is None:
                        raise ValueError("no JSON, or half of it")
                    return Reply(status, read(facts))
                reason, asked_wait = told_by(facts), _seconds(retry_after)
            except (httpx2.TransportError, httpx2.DecodingError, TimeoutError) as error:
                reason = hide_key(f"{type(error).__name__} {error}".strip())
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                reason = f"an unusable reply: {type(error).__name__} {_shown_without_key(str(error), 200)}"
            pause = min(LONGEST_WAIT, max(asked_wait, wait * random.uniform(0.5, 1.5)))
            if attempt == ATTEMPTS or time.monotonic() + pause >= end:
                break
            stopped.wait(pause)
            wait *= 2
        raise self.error(
            f"{self.url} failed {attempt} times, the last time with status {status or 'none'} ({reason}). Try again "
            "later, or check the address"
        )

    @contextmanager
    def _open(self, body: Mapping[str, Any], key: str, end: float) -> Iterator[Any]:
        """Send one request, and provide its reply, whose body is still to be read; it must begin before ``end``."""
        import httpx2

        if self._process != os.getpid():  # a forked child must not share connections
            # a proxy of the environment is asked for other machines only
            self._client = httpx2.Client(follow_redirects=False, trust_env=not is_loopback(self.base_url))
            self._process = os.getpid()
        headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
        timeout = max(0.01, min(SILENCE, end - time.monotonic()))
        sent = json.dumps(body, allow_nan=False).encode()  # escaped, since UTF-8 has no halves of surrogate pairs
        try:
            with self._client.stream("POST", self.url, content=sent, headers=headers, timeout=timeout) as reply:
                if reply.is_redirect:
                    place = _shown_without_key(reply.headers.get("location", ""), 80)
                    raise self.error(
                        f"{self.url} redirects to {place}, which palmette does not follow: neither texts nor the key "
                        "go to a server that you have not named. Name that one, if it is meant"
                    )
                yield reply
        except httpx2.InvalidURL as error:
            raise self.error(f"{shown(self.url)} is no URL that can be reached ({error}): correct it") from error

    def stream(self, body: Mapping[str, Any], *, seconds: float, attempts: int, stop: Stop) -> Iterator[Any]:
        """Yield the JSON of a reply's server-sent events; a reply that is no stream is yielded whole.

        A request is sent again only as long as nothing has come of its reply. Closing the iterator, or ``stop``, ends
        the connection.

        Raises:
            RemoteError: No attempt gave a stream, or it broke off.
            StatusError: The last attempt has another status than 200.
        """
        import httpx2

        end, wait, key = time.monotonic() + seconds, FIRST_WAIT, read_key(self.key) if self.send_key else ""
        for attempt in range(1, attempts + 1):
            begun, pause, last = False, wait, attempt == attempts
            try:
                for event in self._events(body, key, end, stop):
                    begun = True
                    yield event
                return
            except StatusError as error:
                if last or error.reply.status in FATAL or _code(error.reply.content) == NO_MONEY:
                    raise
                pause = min(LONGEST_WAIT, max(error.seconds, wait))
                if time.monotonic() + pause >= end or stop.wait(pause):
                    raise
            except (httpx2.TransportError, httpx2.DecodingError, TimeoutError, ValueError) as error:
                is_late = isinstance(error, httpx2.TimeoutException | TimeoutError)
                failure = f"gave no reply within {seconds:g} s" if is_late else "cannot be reached"
                failure = "sent what is no JSON" if isinstance(error, ValueError) else failure
                failure = "broke off in the middle of its reply" if begun else failure
                last = last or begun or is_late or time.monotonic() + pause >= end
                if last or stop.wait(pause):
                    reason = hide_key(f"{type(error).__name__} {error}".strip())
                    raise self.error(f"{self.url} {failure} ({reason}): check the address, or ask again") from error
            finally:
                stop.end = None
            wait *= 2

    def _events(self, body: Mapping[str, Any], key: str, end: float, stop: Stop) -> Iterator[Any]:
        """Send a request once, and yield the events of its reply."""
        with self._open(body, key, end) as reply:
            stream = reply.extensions.get("network_stream")
            connection: Any = stream.get_extra_info("socket") if stream is not None else None

            def close() -> None:
                with suppress(OSError, AttributeError):
                    connection.shutdown(socket.SHUT_RDWR)

            stop.end = close
            if stop.is_set():
                close()
            if reply.status_code == 200 and "event-stream" in reply.headers.get("content-type", ""):
                for line in reply.iter_lines():
                    if time.monotonic() > end:
                        raise TimeoutError("the reply took too long")
                    if line.startswith("data:") and (data := line[5:].strip()):
                        yield data if data == "[DONE]" else parse_json(data.encode())
                return
            facts = _parsed(self._whole(reply, end))
            if reply.status_code != 200 or facts is None:
                waiting = _seconds(reply.headers.get("retry-after", ""))
                raise StatusError(Reply(reply.status_code, facts), waiting)
            yield facts

    def _whole(self, reply: Any, end: float) -> bytes:
        """Read the body of a reply that is there at ``end`` and of usable size."""
        content = bytearray()
        for part in reply.iter_bytes():
            content += part
            if len(content) > LARGEST_REPLY:
                raise self.error(f"{self.url} answered with more than {LARGEST_REPLY:,} bytes")
            if time.monotonic() > end:
                raise TimeoutError("the reply took too long")
        return bytes(content)

    def refusal(self, model: str, reply: Reply) -> RemoteError:
        """Return the error of a status that another attempt does not mend."""
        reason, fix = told_by(reply.content), ""
        if reply.status in (401, 403):
            fix = f": set {self.key} to a key of this server"
            if not self.send_key:
                fix = f": no key is sent to a server that a record names. Give encoder='openai:{model}@{self.base_url}'"
        return self.error(f"{self.url} answered {reply.status} for model {model!r}: {reason}{fix}")


def read_key(variable: str = KEY) -> str:
    """Return the key of an environment variable, or an empty text."""
    key = os.environ.get(variable, "").strip()
    if not key.isascii() or (key and not key.isprintable()):
        raise ConfigError(f"{variable} holds characters that no key has, such as a line break: copy it again")
    return key


def hide_key(text: str) -> str:
    """Cut the keys out of a text: servers repeat a wrong one."""
    for variable in (KEY, RERANK_KEY):
        if key := os.environ.get(variable, "").strip():
            text = text.replace(key, "…")
    return text


def told_by(facts: Any) -> str:
    """Return what a server says of an error, without the key."""
    if not isinstance(facts, Mapping):
        return "a reply that is no object"
    error = facts.get("error", facts)
    return _shown_without_key(error.get("message", error) if isinstance(error, Mapping) else error, 300)


def counted(usage: Any, *names: str) -> int:
    """Return the first number above 0 that a server counted under one of these names; 0 where there is none."""
    counts = [usage.get(name) for name in names] if isinstance(usage, Mapping) else []
    return next((number for number in counts if type(number) is int and number > 0), 0)


def _shown_without_key(value: Any, length: int) -> str:
    """Represent a value of a server, cut short once the key is cut out: half of a key is one too."""
    return hide_key(shown(value, LARGEST_REPLY))[:length]


def _parsed(data: bytes) -> Any:
    """Parse a body; what is no JSON, such as a proxy's page, is ``None``."""
    try:
        return parse_json(data)
    except ValueError:
        return None


def _code(facts: Any) -> Any:
    error = facts.get("error") if isinstance(facts, Mapping) else None
    return error.get("code") if isinstance(error, Mapping) else None


def _seconds(header: str) -> float:
    """Return the seconds that a Retry-After asks for; 0 for a date, which is no number."""
    try:
        return max(0.0, float(header))
    except ValueError:
        return 0.0
