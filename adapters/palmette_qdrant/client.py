"""A Qdrant collection by its URL: the client's calls, repeated where that may help, and its errors in our words."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlsplit

from pydantic import Field

from palmette.config import Config
from palmette.errors import (
    ConfigError,
    CorruptIndexError,
    InputError,
    LockedError,
    MissingExtraError,
    NotFoundError,
    PalmetteError,
    StoreError,
)
from palmette.lexical.analyser import analyser_of
from palmette.store.local.folder import Manifest
from palmette_qdrant.state import DRAFT, KIND, STATE, State, parse_state

KEY_VARIABLE = "QDRANT_API_KEY"
"""Environment variable that holds a server's key, unless the URL names another."""
LONGEST_PAUSE = 10.0
"""Most seconds between two tries of a request."""
PLACES = "qdrant://host:6333/name, qdrants://host:6333/name or qdrant+local:///folder/name"
"""What URLs of collections look like."""


class QdrantOptions(Config):
    """Options at the end of a URL: ``?ef=256&levels=6,10``."""

    timeout: Annotated[int, Field(ge=1)] = 60
    """Seconds until a request is given up."""
    retries: Annotated[int, Field(ge=0)] = 5
    """Times that a request is sent again for want of a connection or of capacity."""
    ef: Annotated[int, Field(ge=1)] | None = None
    """Candidates that a search in a graph keeps: how deep it looks; ``None`` for the engine's default."""
    exact: bool | None = None
    """Compare every vector; ``None`` does so up to 20,000 documents."""
    levels: tuple[int, ...] = ()
    """Coarser levels of a tree that can be searched; fixed at creation."""
    tenant: str | None = None
    """Metadata name whose documents of one value lie together; fixed at creation."""
    shards: Annotated[int, Field(ge=1)] = 1
    """Parts that the server spreads the points over; fixed at creation."""
    replicas: Annotated[int, Field(ge=1)] = 1
    """Copies that the server keeps of each part; fixed at creation."""
    key: str = KEY_VARIABLE
    """Name of the environment variable that holds the server's key."""


def _local_mode(folder: str) -> Any:
    import qdrant_client

    return qdrant_client.QdrantClient(path=folder, force_disable_check_same_thread=True)


EMBEDDED: dict[str, Callable[[str], Any]] = {"qdrant+local": _local_mode}
"""Clients of a folder, for one process, by scheme."""


def parse_url(url: str) -> tuple[str, str, str, str, QdrantOptions]:
    """Scheme, host, folder, name of the collection and options of a URL; one that holds a key is refused.

    A URL is printed, logged and pickled with what was opened by it: a secret must not be part of it.
    """
    shown = url.split("?")[0]
    try:
        parts = urlsplit(url)
    except ValueError as error:  # a bracket without its other
        raise ConfigError(f"{shown!r} names no collection ({error}): write {PLACES}") from error
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if "api_key" in options or "@" in parts.netloc:
        raise StoreError(  # no ValueError, beside which pydantic would print the URL
            f"the URL of {shown.rpartition('@')[2]!r} holds a key, which would be printed and saved with it: set the "
            f"environment variable {KEY_VARIABLE} instead, or name another one: ?key=VARIABLE"
        )
    folder, _, name = parts.path.rstrip("/").rpartition("/")
    embedded = parts.scheme in EMBEDDED
    if not name or bool(parts.netloc) == embedded or bool(folder) != embedded:
        raise ConfigError(f"{shown!r} names no collection: write {PLACES}")
    values = {option: _option_value(option, text) for option, text in options.items()}
    return parts.scheme, parts.netloc, folder, name, QdrantOptions(**values)


class Collection:
    """A collection by its URL, and the client's calls on it, repeated where the network or the server fails.

    ``qdrant://host:6333/name``, ``qdrants://…`` for TLS, ``qdrant+local:///folder/name`` for the client's local mode.
    """

    def __init__(self, url: str, *, draft: bool = False) -> None:
        scheme, host, folder, self.name, self.options = parse_url(url)
        self.url, self.embedded, self.kind = url, scheme in EMBEDDED, DRAFT if draft else KIND
        self.clock: Callable[[], float] = time.monotonic
        self.sleep: Callable[[float], None] = time.sleep
        self.committed_at: dict[int, float] = {}
        """Commits, and when this process first knew of each, by ``clock``."""
        # local mode is not made for threads
        self._lock: Any = threading.RLock() if self.embedded else nullcontext()
        try:
            import qdrant_client

            self.m: Any = qdrant_client.models
            if self.embedded:
                self.client = EMBEDDED[scheme](folder)
            else:
                address = f"http{'s' if scheme == 'qdrants' else ''}://{host}"
                options: dict[str, Any] = {"timeout": self.options.timeout, "check_compatibility": False}
                key = os.environ.get(self.options.key)
                self.client = qdrant_client.QdrantClient(url=address, api_key=key, **options)
        except ImportError as error:
            raise MissingExtraError(str(error.name), "qdrant", url.split("?")[0]) from error
        except RuntimeError as error:
            raise LockedError(f"{folder} is open elsewhere, and serves one process: {error}") from error
        except ValueError as error:
            raise ConfigError(f"{url.split('?')[0]!r} names no server ({error}): write {PLACES}") from error

    @property
    def has_indexes(self) -> bool:
        """Return whether the engine indexes payloads and vectors; local mode does not, and warns."""
        return not self.embedded or hasattr(self.client, "indexes")

    def describe(self, state: State) -> None:
        """Take in what does not change: arrays, their folds, how texts become words."""
        try:
            self.arrays = Manifest(state.fingerprint, state.arrays, state.language).arrays
            widths = {spec.name: spec.shape[0] for spec in self.arrays if spec.searched == "overlap"}
            for name, fold in ((name, fold) for name, folds in state.folds.items() for fold in folds):
                if widths.get(name, 0) % fold or name not in widths:
                    raise InputError(f"array {name!r} cannot be folded by {fold}")
        except (PalmetteError, LookupError) as error:
            raise CorruptIndexError(f"the state of {self.url} is damaged ({error}): copy it anew") from error
        self.folds: Mapping[str, Sequence[int]] = state.folds
        self.analyser = analyser_of(state.language)
        self.memo: dict[object, Any] = {}  # what views of one commit have learned: rarities, names, counts

    def __call__(self, name: str, *arguments: Any, collection: bool = True, **options: Any) -> Any:
        """Call the client. Every call may be repeated: done twice, none does more."""
        from qdrant_client.common.client_exceptions import QdrantException
        from qdrant_client.http.exceptions import ApiException

        call, last = getattr(self.client, name), self.options.retries
        arguments = (self.name, *arguments) if collection else arguments
        for attempt in range(last + 1):
            try:
                with self._lock:
                    return call(*arguments, **options)
            except (ApiException, QdrantException) as error:
                busy = isinstance(error, QdrantException)  # 429, with the seconds to wait
                status = 429 if busy else getattr(error, "status_code", None)
                if attempt == last or not (status is None or status in (408, 429) or status >= 500):
                    raise self._explain(error, status) from error
                self.sleep(min(max(0.1 * 2**attempt, getattr(error, "retry_after_s", 0)), LONGEST_PAUSE))
        raise AssertionError

    def _explain(self, error: Exception, status: int | None) -> StoreError | NotFoundError:
        if status in (401, 403):
            variable = self.options.key
            return StoreError(f"{self.url} refuses the key ({status}): set the environment variable {variable}")
        if status == 404:
            return NotFoundError(f"{self.url}: there is no such collection; create it first")
        reason = f"the server answered {status}" if status else "no answer; is a server running, and the port right?"
        return StoreError(f"{self.url}: {reason} ({error!s:.300})")

    def where(
        self, *must: Any, keys: Sequence[int] | None = None, must_not: Sequence[Any] = (), **ranges: Mapping[str, float]
    ) -> Any:
        """Filter of points that meet all of these, and none of ``must_not``."""
        m = self.m
        own = [] if keys is None else [m.HasIdCondition(has_id=list(keys))]
        bounds = [m.FieldCondition(key=name, range=m.Range(**bound)) for name, bound in ranges.items()]
        return m.Filter(must=[*must, *own, *bounds], must_not=list(must_not) or None)

    def equals(self, name: str, *values: Any) -> Any:
        """Condition on a field of the payload: it equals one of these texts or whole numbers."""
        return self.m.FieldCondition(key=name, match=self.m.MatchAny(any=list(values)))

    def state(self) -> State:
        """Read the state."""
        points = self("retrieve", [STATE])
        state = parse_state(self.url, points[0].payload if points else None)
        if state.kind != self.kind:
            raise NotFoundError(
                f"{self.url} is not a palmette index: a copy to it has not ended; delete the collection"
            )
        return state

    def update_state(self, changes: Mapping[str, Any], **expected: str | int) -> None:
        """Change the state in one step if it still has these values; else do nothing."""
        where = self.where(*(self.equals(name, value) for name, value in expected.items()), keys=[STATE])
        one_order: dict[str, Any] = {} if self.embedded else {"ordering": self.m.WriteOrdering.STRONG}
        self("set_payload", dict(changes), where, **one_order)

    def index(self, name: str, kind: str, tenant: bool = False) -> None:
        """Have the engine index a field."""
        if self.has_indexes:
            params = self.m.KeywordIndexParams(type=kind, is_tenant=True) if tenant else kind
            self("create_payload_index", name, params)


def _option_value(name: str, text: str) -> Any:
    if name == "levels":
        return tuple(int(item) if item.isdecimal() else item for item in text.split(","))
    if name in ("tenant", "key"):
        return text
    return int(text) if text.isdecimal() else {"true": True, "false": False}.get(text, text)
