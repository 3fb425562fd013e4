"""One interface to language models of LangChain and LlamaIndex, callables, and servers of OpenAI's protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from palmette.endpoint import Endpoint, split_name
from palmette.errors import ConfigError, RemoteError, shown


class LLMError(RemoteError):
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
        if not llm.startswith("openai:"):
            raise ConfigError(f"llm must be 'openai:MODEL', a LangChain or LlamaIndex model or a callable, got {llm!r}")
        return OpenAI(*split_name(llm))
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
        self.name, self._endpoint = model, Endpoint("/chat/completions", base_url, error=LLMError)
        self._structured = True  # until the server refuses a schema

    def complete(self, prompt: str, schema: Mapping[str, Any]) -> Reply:  # noqa: D102
        body: dict[str, Any] = {"model": self.name, "messages": [{"role": "user", "content": prompt}]}
        structured = self._structured
        if structured:
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "reply", "schema": dict(schema), "strict": True},
            }
        response = self._endpoint.post(body, _read_reply)
        if response.status in (400, 422) and structured:  # the server knows no schemas
            self._structured = False
            del body["response_format"]
            response = self._endpoint.post(body, _read_reply)
        if response.status != 200:
            raise self._endpoint.refusal(self.name, response)
        reply: Reply = response.content
        return reply


def _read_reply(facts: Any) -> Reply:
    """Read the message of a server's response; raise if it is incomplete."""
    choice = facts["choices"][0]
    message, usage = choice["message"], facts.get("usage")
    text = message.get("content")
    if not isinstance(text, str | None):
        raise TypeError(f"the message is {type(text).__name__}")
    tokens = usage.get("total_tokens") if isinstance(usage, Mapping) else 0
    refused = bool(message.get("refusal")) or choice.get("finish_reason") == "content_filter"
    return Reply(text or "", tokens if isinstance(tokens, int) else 0, refused)
