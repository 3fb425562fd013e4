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
from palmette.errors import ConfigError, FormatError, LockedError, MissingExtraError, NotFoundError, StoreError
from palmette.lexical.analyser import analyser_of
from palmette.search.plan import ArraySpec

STATE, KIND, FORMAT = 0, "palmette index", 1
"""Key of the state, and how it calls itself."""


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
    replicas: Annotated[int, Field(ge=1)] = 1


def _local_mode(folder: str) -> Any:
    import qdrant_client

    return qdrant_client.QdrantClient(path=folder, force_disable_check_same_thread=True)


EMBEDDED: dict[str, Callable[[str], Any]] = {"qdrant+local": _local_mode}
"""Clients of a folder, for one process, by scheme."""


def is_url(path: object) -> bool:
    """Whether a path names a collection."""
    return isinstance(path, str) and path.partition("://")[0] in ("qdrant", "qdrants", *EMBEDDED)


class Collection:
    """A collection by its URL, and the client's calls on it, repeated where the network or the server fails.

    ``qdrant://host:6333/name``, ``qdrants://…`` for TLS, ``qdrant+local:///folder/name`` for the client's local mode.
    The key is ``?api_key=`` or the environment's ``QDRANT_API_KEY``.
    """

    def __init__(self, url: str) -> None:
        parts, given = urlsplit(url), dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))
        key = given.pop("api_key", None) or os.environ.get("QDRANT_API_KEY")
        folder, _, self.name = parts.path.rstrip("/").rpartition("/")
        self.embedded = parts.scheme in EMBEDDED
        if not self.name or bool(parts.netloc) == self.embedded or bool(folder) != self.embedded:
            raise ConfigError(
                f"{url.split('?')[0]!r} names no collection: write qdrant://host:6333/name, qdrants://host:6333/name "
                "or qdrant+local:///folder/name"
            )
        self.url = "?".join(filter(None, (url.split("?")[0], "&".join(f"{n}={v}" for n, v in given.items()))))
        self.options = QdrantOptions(**{name: _option(name, text) for name, text in given.items()})
        # local mode is not made for threads
        self._lock: Any = threading.RLock() if self.embedded else nullcontext()
        try:
            import qdrant_client

            self.m: Any = qdrant_client.models
            if self.embedded:
                self.client = EMBEDDED[parts.scheme](folder)
            else:
                place = f"http{'s' if parts.scheme == 'qdrants' else ''}://{parts.netloc}"
                how: dict[str, Any] = {"timeout": self.options.timeout, "check_compatibility": False}
                self.client = qdrant_client.QdrantClient(url=place, api_key=key, **how)
        except ImportError as error:
            raise MissingExtraError(str(error.name), "qdrant", url.split("?")[0]) from error
        except RuntimeError as error:
            raise LockedError(f"{folder} is open elsewhere, and serves one process: {error}") from error

    @property
    def has_indexes(self) -> bool:
        """Whether the engine indexes payloads and vectors; local mode does not, and warns."""
        return not self.embedded or hasattr(self.client, "indexes")

    def describe(self, state: Mapping[str, Any]) -> None:
        """Take in what does not change: arrays, their folds, how texts become words."""
        self.arrays = tuple(ArraySpec(**{**one, "shape": tuple(one["shape"])}) for one in state["arrays"])
        self.folds: Mapping[str, Sequence[int]] = state["folds"]
        self.analyser = analyser_of(state["language"])
        self.memo: dict[object, Any] = {}  # what views of one commit have learned: rarities, names, counts

    def __call__(self, name: str, *given: Any, collection: bool = True, **named: Any) -> Any:
        """Call the client. Every call may be repeated: done twice, none does more."""
        from qdrant_client.http.exceptions import ApiException

        call, last = getattr(self.client, name), self.options.retries
        given = (self.name, *given) if collection else given
        for attempt in range(last + 1):
            try:
                with self._lock:
                    return call(*given, **named)
            except ApiException as error:
                status = getattr(error, "status_code", None)
                if attempt == last or not (status is None or status in (408, 429) or status >= 500):
                    raise self._explain(error, status) from error
                time.sleep(min(0.1 * 2**attempt, 10))
        raise AssertionError

    def _explain(self, error: Exception, status: int | None) -> StoreError | NotFoundError:
        if status in (401, 403):
            return StoreError(f"{self.url} refuses this key ({status}): set QDRANT_API_KEY, or give ?api_key=")
        if status == 404:
            return NotFoundError(f"{self.url}: there is no such collection; create it first")
        told = f"the server answered {status}" if status else "no answer; is a server running, and the port right?"
        return StoreError(f"{self.url}: {told} ({error!s:.300})")

    def where(self, *must: Any, keys: Sequence[int] | None = None, **ranges: Mapping[str, float]) -> Any:
        """Filter of points that meet all of these."""
        m = self.m
        own = [] if keys is None else [m.HasIdCondition(has_id=list(keys))]
        bounds = [m.FieldCondition(key=name, range=m.Range(**given)) for name, given in ranges.items()]
        return m.Filter(must=[*must, *own, *bounds])

    def equals(self, name: str, *values: Any) -> Any:
        """Condition on a field of the payload."""
        return self.m.FieldCondition(key=name, match=self.m.MatchAny(any=list(values)))

    def state(self) -> dict[str, Any]:
        """Read the state."""
        found = self("retrieve", [STATE])
        state: dict[str, Any] = found[0].payload if found else {}
        if state.get("kind") != KIND:
            raise NotFoundError(f"{self.url} is not a palmette index: another program's collection, or half created")
        if state["format"] > FORMAT:
            raise FormatError(f"{self.url} has format {state['format']}, newer than {FORMAT}: upgrade palmette")
        return state

    def index(self, name: str, kind: str, tenant: bool = False) -> None:
        """Have the engine index a field."""
        if self.has_indexes:
            params = self.m.KeywordIndexParams(type=kind, is_tenant=True) if tenant else kind
            self("create_payload_index", name, params)


def _option(name: str, text: str) -> Any:
    if name == "levels":
        return tuple(int(one) if one.isdecimal() else one for one in text.split(","))
    return int(text) if text.isdecimal() and name != "tenant" else {"true": True, "false": False}.get(text, text)
