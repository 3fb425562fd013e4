"""A server of OpenAI's protocol: its address, its key, time limits and retries, for chat and for embeddings.

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
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
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
    """A status other than 200: the reply, and the seconds after which the server wants to be asked again."""

    def __init__(self, reply: Reply, seconds: float = 0.0) -> None:
        super().__init__(f"status {reply.status}")
        self.reply, self.seconds = reply, seconds


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
    """

    def __init__(
        self,
        path: str,
        base_url: str | None = None,
        *,
        error: type[RemoteError] = RemoteError,
        send_key: bool = True,
        key: str = KEY,
    ) -> None:
        self.base_url = check_url(base_url or default_url())
        self.url, self.error, self.send_key, self.key = self.base_url + path, error, send_key, key
        self._client: Any = None
        self._process = 0

    def post(
        self,
        body: Mapping[str, Any],
        read: Callable[[Any], Any],
        *,
        patience: float = float("inf"),
        stopped: threading.Event | None = None,
    ) -> Reply:
        """Send a request, and return its reply, or a status that another attempt does not mend.

        ``read`` makes the content of a reply's JSON. All attempts together take ``patience`` seconds at most.

        Raises:
            RemoteError: Every attempt failed, or the server leads elsewhere.
        """
        try:
            return Reply(200, next(self.send(body, read, seconds=patience, stop=stopped)))
        except StatusError as error:
            return error.reply

    def send(
        self,
        body: Mapping[str, Any],
        read: Callable[[Any], Any],
        *,
        seconds: float,
        attempts: int | None = None,
        stop: threading.Event | None = None,
    ) -> Iterator[Any]:
        """Yield what ``read`` makes of a reply's JSON, or of each of its server-sent events.

        A request is sent again where that may help, as long as nothing has come of its reply and ``stop`` is not set.
        ``read`` raises ValueError, KeyError, IndexError, TypeError or AttributeError where its argument is not whole.
        Closing the iterator ends the connection.

        Raises:
            RemoteError: No attempt gave a reply, or it broke off.
            StatusError: A status that another attempt does not mend.
        """
        import httpx2

        end, wait, stop = time.monotonic() + seconds, FIRST_WAIT, stop or threading.Event()
        attempts = attempts or ATTEMPTS
        for attempt in range(1, attempts + 1):
            key = read_key(self.key) if self.send_key else ""
            if stop.is_set():
                raise self.error("the call was given up, since its run has ended")
            begun, status, asked_wait = False, 0, 0.0
            try:
                for facts in self._events(body, key, end):
                    value = read(facts)
                    begun = True
                    yield value
                if begun:
                    return
                raise ValueError("no event of a stream")
            except StatusError as error:
                status, facts = error.reply
                if status in FATAL or _code(facts) == NO_MONEY:
                    raise
                reason, asked_wait = told_by(facts), error.seconds
            except (httpx2.TransportError, httpx2.DecodingError, TimeoutError) as error:
                reason = hide_key(f"{type(error).__name__} {error}".strip())
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                reason = f"an unusable reply: {type(error).__name__} {_shown_without_key(str(error), 200)}"
            pause = min(LONGEST_WAIT, max(asked_wait, wait * random.uniform(0.5, 1.5)))
            if begun or attempt == attempts or time.monotonic() + pause >= end:
                break
            stop.wait(pause)
            wait *= 2
        failure = "broke off in the middle of its reply" if begun else f"failed {attempt} times"
        last = f", the last time with status {status}" if status else ""
        raise self.error(f"{self.url} {failure}{last} ({reason}). Try again later, or check the address")

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

    def _events(self, body: Mapping[str, Any], key: str, end: float) -> Iterator[Any]:
        """Send a request once, and yield the JSON of its reply, or of each event; it must be whole at ``end``."""
        with self._open(body, key, end) as reply:
            # 1. A stream: each event as it comes.
            if reply.status_code == 200 and "event-stream" in reply.headers.get("content-type", ""):
                for line in reply.iter_lines():
                    if time.monotonic() > end:
                        raise TimeoutError("the reply took too long")
                    if line.startswith("data:") and (data := line[5:].strip()):
                        yield data if data == "[DONE]" else parse_json(data.encode())
                return
            # 2. Any other body is read whole, if it is of usable size and comes in time.
            content, until = bytearray(), min(end, time.monotonic() + SLOWEST)
            for part in reply.iter_bytes():
                content += part
                if len(content) > LARGEST_REPLY:
                    raise self.error(f"{self.url} answered with more than {LARGEST_REPLY:,} bytes")
                if time.monotonic() > until:
                    raise TimeoutError("the reply took too long")
        facts = None
        with suppress(ValueError):  # no JSON, such as a proxy's page
            facts = parse_json(bytes(content))
        if reply.status_code != 200:
            raise StatusError(Reply(reply.status_code, facts), _seconds(reply.headers.get("retry-after", "")))
        if facts is None:
            raise ValueError("no JSON, or half of it")
        yield facts

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


def _code(facts: Any) -> Any:
    error = facts.get("error") if isinstance(facts, Mapping) else None
    return error.get("code") if isinstance(error, Mapping) else None


def _seconds(header: str) -> float:
    """Return the seconds that a Retry-After asks for; 0 for a date, which is no number."""
    try:
        return max(0.0, float(header))
    except ValueError:
        return 0.0
