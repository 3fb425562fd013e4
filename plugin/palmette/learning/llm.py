"""One interface to language models of LangChain and LlamaIndex, callables, and servers of OpenAI's protocol."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from palmette.config import parse_json
from palmette.errors import ConfigError, PalmetteError, shown

OPENAI_URL = "https://api.openai.com/v1"
"""Default server of ``openai:MODEL``; the variable OPENAI_BASE_URL names another one."""
ATTEMPTS = 6
"""Largest number of times that a request is sent."""
FIRST_WAIT = 1.0
"""Seconds before the second attempt; each further wait is twice as long, within random bounds of 50 %."""
LONGEST_WAIT = 60.0
"""Largest number of seconds between two attempts, even if a server's Retry-After says more."""
TIMEOUT = 120.0
"""Seconds to wait for a server's reply."""
FATAL = (400, 401, 403, 404, 405, 422)
"""HTTP statuses after which a request is not repeated."""


class LLMError(PalmetteError):
    """A language model cannot be used: a wrong key, a wrong name, or no connection."""


@dataclass(frozen=True)
class Reply:
    """Text that a language model wrote."""

    text: str
    tokens: int = 0
    """Number of tokens of prompt and reply; 0 if the model does not count them."""
    refused: bool = False
    """Whether the model, or a filter in front of it, declined."""


class LLM(Protocol):
    """A language model that completes one prompt."""

    name: str
    """Name of the model in the log of answers; answers of another model are not reused."""

    def complete(self, prompt: str, schema: Mapping[str, Any]) -> Reply:
        """Return the model's reply, as JSON of the schema where the model supports that."""


def as_llm(llm: Any) -> LLM:
    """Wrap a LangChain chat model, a LlamaIndex LLM, a callable ``prompt -> text`` or ``"openai:MODEL"``."""
    if isinstance(llm, str):
        kind, _, model = llm.partition(":")
        if kind != "openai" or not model.strip():
            raise ConfigError(f"llm must be 'openai:MODEL', a LangChain or LlamaIndex model or a callable, got {llm!r}")
        return OpenAI(model.strip())
    if isinstance(llm, OpenAI):
        return llm
    if callable(getattr(llm, "invoke", None)):
        return LangChain(llm)
    if callable(getattr(llm, "complete", None)):
        return LlamaIndex(llm)
    if callable(llm):
        return Call(llm)
    raise ConfigError(
        f"llm must be 'openai:MODEL', a LangChain or LlamaIndex model or a callable, got {type(llm).__name__} "
        f"{shown(llm)}"
    )


class Call:
    """A callable ``prompt -> text``."""

    def __init__(self, call: Callable[[str], str]) -> None:
        self.call, self.name = call, getattr(call, "__qualname__", type(call).__name__)

    def complete(self, prompt: str, schema: Mapping[str, Any]) -> Reply:  # noqa: D102
        text = self.call(prompt)
        if not isinstance(text, str):
            raise LLMError(f"the llm must return a str, got {type(text).__name__} {shown(text)}")
        return Reply(text)


class LangChain:
    """A LangChain chat model or LLM, with its own retries."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.name = str(getattr(model, "model_name", None) or getattr(model, "model", None) or type(model).__name__)

    def complete(self, prompt: str, schema: Mapping[str, Any]) -> Reply:  # noqa: D102
        message = self.model.invoke(prompt)
        content = getattr(message, "content", message)
        if isinstance(content, list):  # blocks of a multimodal message
            content = "".join(part if isinstance(part, str) else str(part.get("text", "")) for part in content)
        usage = getattr(message, "usage_metadata", None) or {}
        extra = getattr(message, "additional_kwargs", {})
        return Reply(str(content), int(usage.get("total_tokens", 0)), bool(extra.get("refusal")))


class LlamaIndex:
    """A LlamaIndex LLM, with its own retries."""

    def __init__(self, model: Any) -> None:
        self.model, metadata = model, getattr(model, "metadata", None)
        self.name = str(getattr(metadata, "model_name", None) or type(model).__name__)

    def complete(self, prompt: str, schema: Mapping[str, Any]) -> Reply:  # noqa: D102
        response = self.model.complete(prompt)
        usage = getattr(response, "additional_kwargs", None) or {}
        return Reply(str(response.text), int(usage.get("total_tokens", 0)))


class OpenAI:
    """A model behind OpenAI's chat protocol: OpenAI itself, vLLM, Ollama, llama.cpp and others.

    The key is read from OPENAI_API_KEY for every request, and is not stored.
    """

    def __init__(self, model: str, base_url: str | None = None) -> None:
        import httpx

        url = base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI_URL
        if "@" in url or "?" in url:
            raise ConfigError("the URL of a model server holds a key, which errors would print: set OPENAI_API_KEY")
        self.name, self._url = model, url.rstrip("/") + "/chat/completions"
        self._client = httpx.Client(timeout=TIMEOUT)
        self._structured = True  # until the server refuses a schema

    def complete(self, prompt: str, schema: Mapping[str, Any]) -> Reply:  # noqa: D102
        body: dict[str, Any] = {"model": self.name, "messages": [{"role": "user", "content": prompt}]}
        structured = self._structured
        if structured:
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "reply", "schema": dict(schema), "strict": True},
            }
        status, facts = self._send(body)
        if status in (400, 422) and structured:  # the server knows no schemas
            self._structured = False
            del body["response_format"]
            status, facts = self._send(body)
        if status != 200:
            raise LLMError(f"{self._url} answered {status} for model {self.name!r}: {_reason(facts)}")
        choice = facts["choices"][0]
        message, usage = choice["message"], facts.get("usage")
        tokens = usage.get("total_tokens") if isinstance(usage, Mapping) else 0
        refused = bool(message.get("refusal")) or choice.get("finish_reason") == "content_filter"
        return Reply(message.get("content") or "", tokens if isinstance(tokens, int) else 0, refused)

    def _send(self, body: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        """Send a request, repeated after temporary failures; returns the last status and body."""
        import httpx

        wait = FIRST_WAIT
        for attempt in range(1, ATTEMPTS + 1):
            headers = {"authorization": f"Bearer {key}"} if (key := os.environ.get("OPENAI_API_KEY")) else {}
            retry_after, reason, status = 0.0, "", 0
            try:
                response = self._client.post(self._url, json=body, headers=headers)
                status = response.status_code
                facts = parse_json(response.content)
                if status in FATAL:
                    return status, facts if isinstance(facts, dict) else {}
                if status == 200 and _is_complete(facts):
                    return status, facts
                reason = _reason(facts) if isinstance(facts, dict) else "a reply that is no object"
                retry_after = _seconds(response.headers.get("retry-after"))
            except (httpx.TransportError, ValueError) as error:  # no connection, a hang-up, half a reply
                if status in FATAL:
                    return status, {}
                reason = f"{type(error).__name__} {error}"
            if attempt < ATTEMPTS:
                time.sleep(min(LONGEST_WAIT, max(retry_after, wait * random.uniform(0.5, 1.5))))
                wait *= 2
        raise LLMError(f"{self._url} failed {ATTEMPTS} times, the last time with status {status or 'none'} ({reason})")


def _is_complete(facts: Any) -> bool:
    """Return True if a response has a message."""
    try:
        message = facts["choices"][0]["message"]
        return isinstance(message, dict) and isinstance(message.get("content"), str | None)
    except (KeyError, IndexError, TypeError):
        return False


def _reason(facts: Mapping[str, Any]) -> str:
    """Return the error message of a response, without the key, which servers repeat if it is wrong."""
    error = facts.get("error", facts)
    message = shown(error.get("message", error) if isinstance(error, Mapping) else error, 300)
    key = os.environ.get("OPENAI_API_KEY")
    return message.replace(key, "…") if key else message


def _seconds(header: str | None) -> float:
    """Parse a Retry-After header; 0 for a date or none."""
    try:
        return max(0.0, float(header or 0))
    except ValueError:
        return 0.0
