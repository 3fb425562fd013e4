"""Encoders behind a server of OpenAI's protocol: OpenAI, vLLM, Ollama, TEI, llama.cpp and others."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from palmette.arrays import Floats, Rows
from palmette.config import check_range
from palmette.encoder.base import Encoder, Kind, Output
from palmette.encoder.cache import CachedEncoder, EncodingCache
from palmette.encoder.options import EncoderOptions, chosen_prompts, fingerprint_with
from palmette.encoder.pooled import PROBE, PooledEncoder, fingerprints
from palmette.encoder.sentences.splitting import estimate_tokens
from palmette.encoder.states import States
from palmette.errors import EncodingError, ModelMismatchError
from palmette.machine.endpoint import Endpoint, counted, default_url, is_loopback, same_server, split_name

TEXTS_OF_A_PASS = 256
"""Texts that are sent in requests at the same time, and kept together."""
REQUEST_TEXTS = 64
"""Texts of a request; a server that takes fewer gets fewer."""
REQUEST_TOKENS = 32_768
"""Estimated tokens of a request of several texts."""
PARALLEL = 4
"""Requests at a time."""
MAX_LENGTH = 8192
"""Estimated tokens of a text that are sent; a text that the server finds too long is cut further."""
SHORTEST_CUT = 256
"""Characters of a text that is not cut further when a server refuses it."""
LARGEST_WIDTH = 65_536
"""Largest width of a vector that a record may have."""
TOO_LARGE = (400, 413, 422)
"""HTTP statuses that may mean too many texts, or a text that is too long."""
QUERY_PATIENCE = 30.0
"""Seconds that a question waits for its vector, all attempts together."""


REMOTE_ENCODERS: WeakValueDictionary[str, RemoteEncoder] = WeakValueDictionary()


@dataclass
class Usage:
    """Tokens of an encoder's requests in this process; a text from the cache costs nothing."""

    requests: int = 0
    texts: int = 0
    tokens: int = 0
    """Tokens, as the server counts them, else as palmette estimates them."""

    def __str__(self) -> str:
        return f"{self.texts:,} texts, {self.tokens:,} tokens in {self.requests:,} requests"


class ServerEncoder(PooledEncoder):
    """The server's vectors, without a cache: every text is paid. :class:`RemoteEncoder` is what to use.

    ``record`` is an encoder's config, which gives width and fingerprint: the first request then compares the model
    behind the name with them, and none is needed before. It may come from a stranger.
    """

    remote = True

    def __init__(
        self,
        name: str,
        *,
        prompts: Mapping[str, str] | None = None,
        truncate: int | None = None,
        max_length: int | None = None,
        record: Mapping[str, Any] | None = None,
    ) -> None:
        check_range("RemoteEncoder", "max_length", max_length, 1, MAX_LENGTH * 32, whole=True)
        self.model, url = split_name(name)
        super().__init__(
            f"openai:{self.model}" + (f"@{url}" if url else ""),
            max_length=max_length or MAX_LENGTH,
            batch_size=TEXTS_OF_A_PASS,
        )
        send_key = url is None or record is None or same_server(url, default_url())
        if not send_key and not is_loopback(str(url)):
            raise ModelMismatchError(
                f"this was made with the encoder {self.name!r}. Texts do not go to a server because a record names it: "
                f"give encoder={self.name!r} to use it"
            )
        self.endpoint = Endpoint("/embeddings", url, send_key=send_key)
        self.source = f"the model {self.model!r} of {self.endpoint.url}"
        self.usage = Usage()
        self._lock_of_usage = threading.Lock()
        self._most = REQUEST_TEXTS
        self._facts, self._record = f"remote encoder 1\0{self.model}", record
        if record is None:
            self.settle(self._facts, prompts, truncate)
        else:
            self._take(record)

    def _take(self, record: Mapping[str, Any]) -> None:
        """Take width, prompts and fingerprint from a record."""
        name = f"the record of encoder {self.name!r}"
        check_range(name, "dimension", record.get("dimension") or 0, 1, LARGEST_WIDTH, whole=True)
        self.dimension = self.hidden_size = int(record["dimension"])
        self.truncate = None if record.get("truncate") is None else self.dimension
        self.width = 0 if self.truncate else self.dimension
        prompts = chosen_prompts(record.get("prompts"), {})
        self.prompts = {kind: prompt for kind, prompt in prompts.items() if prompt}
        self.fingerprint = str(record["fingerprint"])

    def check_model(self, probe: Floats) -> None:
        """Raise unless the model behind the name is the recorded one, and the one of earlier requests."""
        if self._record is not None:
            bases = fingerprints(self._facts, probe)
            if self.fingerprint not in [fingerprint_with(base, {}, self.prompts, self.truncate) for base in bases]:
                raise ModelMismatchError(
                    f"{self.endpoint.url} has another model under the name {self.model!r} than the one this was made "
                    "with: its vectors differ. Use the server of that time, or index and train again"
                )
            self.width, self._record = len(probe), None
        try:
            super().check_model(probe)
        except ModelMismatchError:
            # Who loads the name again means the server's model of today.
            for key, known in list(REMOTE_ENCODERS.items()):
                if known.encoder is self:
                    del REMOTE_ENCODERS[key]
            raise

    def iter_batches(
        self,
        texts: Sequence[str],
        kind: Kind,
        output_names: frozenset[Output],
        size: int,
        names: Sequence[int],
        depth: int | None = None,
    ) -> Iterator[tuple[Rows, States]]:
        """Yield the answers of requests, several of which are sent at the same time.

        Where one fails, no further ones are sent, and the error comes after the answers of those under way, so that a
        cache keeps what is paid.
        """
        ends = np.cumsum([0, *map(len, self._batches(list(texts), 1))])
        requests = [np.arange(first, last) for first, last in pairwise(ends.tolist())]

        def answer(rows: Rows) -> tuple[Rows, States]:
            batch, named = [texts[row] for row in rows.tolist()], [names[row] for row in rows.tolist()]
            return rows, self._run_batch(batch, named, kind, output_names, depth)

        if self._record is not None or len(requests) == 1:  # the first one compares the model with the record
            yield answer(requests.pop(0))
        pool, failure = ThreadPoolExecutor(PARALLEL, thread_name_prefix="palmette-embed"), None
        try:
            for future in [pool.submit(answer, rows) for rows in requests]:
                try:
                    answered = future.result()
                except CancelledError:
                    continue
                except Exception as error:
                    failure = failure or error
                    pool.shutdown(wait=False, cancel_futures=True)
                else:
                    yield answered
        finally:
            pool.shutdown(cancel_futures=True)
        if failure is not None:
            raise failure

    def embed(self, texts: list[str], kind: Kind) -> Floats:
        """Return the server's vectors [N, d]."""
        patience = QUERY_PATIENCE if kind == "query" else float("inf")
        return _stacked((self._ask(batch, patience).rows for batch in self._batches(texts)), self.name)

    def _batches(self, texts: list[str], room: int = 0) -> Iterator[list[str]]:
        """Divide texts into requests with room for PROBE, in order; texts beyond the limit are cut."""
        most, spare = max(1, self._most - room), room * estimate_tokens([PROBE])[0]
        batch, size = list[str](), spare
        for text, tokens in zip(texts, estimate_tokens(texts), strict=True):
            if tokens > self.max_length:
                text, tokens = text[: len(text) * self.max_length // tokens], self.max_length
            if batch and (len(batch) == most or size + tokens > REQUEST_TOKENS):
                yield batch
                batch, size = [], spare
            batch.append(text)
            size += tokens
        yield batch

    def _ask(self, texts: list[str], patience: float) -> _Answer:
        """Return the vectors of a batch; what a server refuses for its size is asked for in parts."""
        tokens = sum(estimate_tokens(texts))
        body = {"model": self.model, "input": texts, "encoding_format": "float"}
        reply = self.endpoint.post(body, lambda facts: _read(facts, len(texts)), patience=patience)
        if reply.status == 200:
            rows, counted = reply.content
            with self._lock_of_usage:
                self.usage.requests += 1
                self.usage.texts += len(texts)
                self.usage.tokens += counted or tokens
            return _Answer(rows, 0)
        if reply.status in TOO_LARGE and len(texts) > 1:
            half = len(texts) // 2
            parts = [self._ask(part, patience) for part in (texts[:half], texts[half:])]
            refused = sum(part.refused for part in parts)
            if not refused:  # there were too many texts, rather than one that is too long
                self._most = min(self._most, half)
            return _Answer(_stacked([part.rows for part in parts], self.name), 1 + refused)
        if reply.status in TOO_LARGE and len(texts[0]) > SHORTEST_CUT:
            answer = self._ask([texts[0][: len(texts[0]) // 2]], patience)
            warnings.warn(
                f"{self.name!r} takes no text of {len(texts[0]):,} characters, and read the first half of one",
                stacklevel=2,
            )
            return _Answer(answer.rows, 1 + answer.refused)
        raise self.endpoint.refusal(self.model, reply)


class _Answer(NamedTuple):
    """Vectors [N, d], and how often the server has refused a part of the texts."""

    rows: Floats
    refused: int


def _read(facts: Any, count: int) -> tuple[Floats, int]:
    """Return the vectors of a reply in the order of the texts, and the tokens that the server counted."""
    items = facts["data"]
    places = [item.get("index", place) for place, item in enumerate(items)]
    if sorted(places) != list(range(count)):
        raise ValueError(f"{len(items)} vectors for {count} texts, or numbers that are not those of the texts")
    numbers = np.array([items[row]["embedding"] for row in np.argsort(places)])  # of different widths, it raises
    if numbers.ndim != 2 or not numbers.size or numbers.dtype.kind not in "fiu":  # texts, nulls, truth values
        raise ValueError("vectors that are no lists of numbers")
    with np.errstate(over="ignore"):  # what is not finite is refused by name
        rows = numbers.astype(np.float32)
    return rows, counted(facts.get("usage"), "total_tokens", "prompt_tokens")


def _stacked(parts: Iterable[Floats], name: str) -> Floats:
    """Return the rows of all requests, [N, d]."""
    rows = list(parts)
    if len(widths := {part.shape[1] for part in rows}) > 1:
        raise EncodingError(f"{name!r} returned vectors of {' and of '.join(map(str, sorted(widths)))} numbers")
    return np.concatenate(rows)


class RemoteEncoder(CachedEncoder):
    """An encoder behind a server of OpenAI's protocol. Every text, and every question, is paid once.

    The key is read from OPENAI_API_KEY when a request is sent, and goes to the server that you name. It is in no
    object, record or message. Encodings are kept in palmette's cache, also for other processes.

    Args:
        name: ``openai:MODEL``, of the server that OPENAI_BASE_URL names (OpenAI's by default), or
            ``openai:MODEL@https://host/v1``.
        prompts: Text put before a query and before a document: ``{"query": "query: ", "document": "passage: "}``.
        truncate: Columns of the vectors that are kept, of a model that was trained for it (Matryoshka).
        max_length: Tokens of a text that are sent.
        cache: Where encodings are kept; ``None`` for the user's cache folder.
        record: Config of an index or a checkpoint that was made with the encoder.
    """

    remote = True
    encoder: ServerEncoder
    usage: Usage

    def __init__(
        self,
        name: str,
        *,
        prompts: Mapping[str, str] | None = None,
        truncate: int | None = None,
        max_length: int | None = None,
        cache: EncodingCache | str | Path | None = None,
        record: Mapping[str, Any] | None = None,
    ) -> None:
        own = ServerEncoder(name, prompts=prompts, truncate=truncate, max_length=max_length, record=record)
        super().__init__(own, cache)

    def encode_queries(self, texts: Sequence[str]) -> Floats:
        """Return query vectors [N, d], from the cache where they are known."""
        return self.cache.encode(self.encoder, texts, kind="query", progress=False)


def load_remote(name: str, record: Mapping[str, Any] | None, options: EncoderOptions) -> RemoteEncoder:
    """Return the encoder of a name, or of a record that may come from a stranger; loading it twice gives one object."""
    vectors: dict[str, Any] = {"prompts": options.prompts, "truncate": options.truncate}
    vectors["max_length"] = options.max_length or MAX_LENGTH
    key = repr((*split_name(name), default_url(), vectors, os.environ.get("PALMETTE_CACHE")))
    known = REMOTE_ENCODERS.get(key)
    if known is not None:
        same = record is None or known.fingerprint == record["fingerprint"]
        if same and (known.encoder.endpoint.send_key or record is not None):
            return known
    encoder = REMOTE_ENCODERS[key] = RemoteEncoder(name, record=record, **vectors)
    return encoder


def usage_of(encoder: Encoder) -> Usage | None:
    """Return what an encoder, or the one inside a learned space, has cost in this process; ``None`` for a local one."""
    usage = getattr(encoder.plain, "usage", None)
    return usage if isinstance(usage, Usage) else None
