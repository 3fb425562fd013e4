"""One interface to language models of LangChain and LlamaIndex, callables, and servers of OpenAI's protocol."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import CodeType
from typing import Any, Protocol

from palmette.errors import ConfigError, RemoteError, shown
from palmette.machine.endpoint import Endpoint, split_name


class LLMError(RemoteError):
    """A language model cannot be used: a wrong key, a wrong name, or no connection."""


class RefusedError(LLMError):
    """A server refuses a call, and another attempt does not mend that."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class ModelReply:
    """Text that a language model wrote."""

    text: str
    tokens: int = 0
    """Number of tokens of prompt and reply; 0 if the model does not count them."""
    refused: bool = False
    """Whether the model, or a filter in front of it, declined."""


def counted(usage: Any) -> int:
    """Return the tokens that a model counted, a whole number above 0; 0 for anything else, which would undo others."""
    tokens = usage.get("total_tokens") if isinstance(usage, Mapping) else 0
    return tokens if type(tokens) is int and tokens > 0 else 0


class LLM(Protocol):
    """A language model that completes one prompt."""

    name: str
    """Name of the model in the log of answers; answers of a model of another name are not reused.

    That of a function is its own: give a function that asks another model another name. Lambdas and ``partial``, whose
    names say nothing, are told apart by their code and the plain values in them.
    """

    def complete(self, prompt: str, schema: Mapping[str, Any]) -> ModelReply:
        """Return the model's reply, as JSON of the schema where the model supports that."""

    def stop(self) -> None:
        """Begin no further attempt of the calls that are running."""


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


class _NotStopped:
    """A model whose calls nobody but itself can end."""

    def stop(self) -> None:
        """Do nothing."""


class Call(_NotStopped):
    """A callable ``prompt -> text``."""

    def __init__(self, call: Callable[[str], str]) -> None:
        self.call, self.name = call, name_of_model(call)

    def complete(self, prompt: str, schema: Mapping[str, Any]) -> ModelReply:  # noqa: D102
        text = self.call(prompt)
        if not isinstance(text, str):
            raise LLMError(f"the llm must return a str, got {type(text).__name__} {shown(text)}")
        return ModelReply(text)


class LangChain(_NotStopped):
    """A LangChain chat model or LLM, with its own retries."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.name = str(getattr(model, "model_name", None) or getattr(model, "model", None) or type(model).__name__)

    def complete(self, prompt: str, schema: Mapping[str, Any]) -> ModelReply:  # noqa: D102
        message = self.model.invoke(prompt)
        content = getattr(message, "content", message)
        if isinstance(content, list):  # blocks of a multimodal message
            content = "".join(part if isinstance(part, str) else str(part.get("text", "")) for part in content)
        usage = getattr(message, "usage_metadata", None)
        extra = getattr(message, "additional_kwargs", {})
        return ModelReply(str(content), counted(usage), bool(extra.get("refusal")))


class LlamaIndex(_NotStopped):
    """A LlamaIndex LLM, with its own retries."""

    def __init__(self, model: Any) -> None:
        self.model, metadata = model, getattr(model, "metadata", None)
        self.name = str(getattr(metadata, "model_name", None) or type(model).__name__)

    def complete(self, prompt: str, schema: Mapping[str, Any]) -> ModelReply:  # noqa: D102
        response = self.model.complete(prompt)
        return ModelReply(str(response.text), counted(getattr(response, "additional_kwargs", None)))


def name_of_model(call: Any) -> str:
    """Name a callable; a lambda or a ``partial`` by a digest of what it is made of."""
    if isinstance(call, partial):
        held = [name_of_model(call.func), *map(_plain, call.args)]
        held += [f"{name}={_plain(value)}" for name, value in sorted(call.keywords.items())]
        return f"partial {_digest(held)}"
    name = str(getattr(call, "__qualname__", type(call).__name__))
    if name.rpartition(".")[2] != "<lambda>":
        return name
    held = [*_code(call.__code__), *map(_plain, call.__defaults__ or ())]
    held += [f"{key}={_plain(value)}" for key, value in (call.__kwdefaults__ or {}).items()]
    for cell in call.__closure__ or ():
        try:
            held.append(_plain(cell.cell_contents))
        except ValueError:  # not bound yet
            held.append("")
    values = [call.__globals__.get(name) for name in call.__code__.co_names]
    return f"{name} {_digest([*held, *(value for value in values if isinstance(value, str))])}"


def _code(code: CodeType) -> list[str]:
    """Return instructions, names and constants of a function, and of the functions in it."""
    held = [code.co_code.hex(), *code.co_names]
    for constant in code.co_consts:
        value = sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant  # its order is by chance
        held += _code(constant) if isinstance(constant, CodeType) else [repr(value)]
    return held


def _plain(value: Any) -> str:
    """Represent a value that has no address; others by what they are called."""
    if value is None or isinstance(value, str | int | float):
        return repr(value)
    return (
        name_of_model(value)
        if isinstance(value, partial)
        else str(getattr(value, "__qualname__", type(value).__name__))
    )


def _digest(held: list[str]) -> str:
    return hashlib.sha256("\0".join(held).encode("utf-8", "surrogatepass")).hexdigest()[:16]


class OpenAI:
    """A model behind OpenAI's chat protocol: OpenAI itself, vLLM, Ollama, llama.cpp and others.

    The key is read from OPENAI_API_KEY for every request, and is not stored.
    """

    def __init__(self, model: str, base_url: str | None = None) -> None:
        self.name, self._endpoint = model, Endpoint("/chat/completions", base_url, error=LLMError)
        self._stopped = threading.Event()
        self._structured = True  # until the server refuses a schema

    def stop(self) -> None:
        """Begin no further attempt of the calls that are running; later calls are made as ever."""
        self._stopped.set()
        self._stopped = threading.Event()

    def complete(self, prompt: str, schema: Mapping[str, Any]) -> ModelReply:  # noqa: D102
        stopped = self._stopped  # that of the calls that run with this one
        body: dict[str, Any] = {"model": self.name, "messages": [{"role": "user", "content": prompt}]}
        structured = self._structured
        if structured:
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "reply", "schema": dict(schema), "strict": True},
            }
        response = self._endpoint.post(body, _read_reply, stopped=stopped)
        if response.status in (400, 422) and structured:  # the server knows no schemas
            self._structured = False
            del body["response_format"]
            response = self._endpoint.post(body, _read_reply, stopped=stopped)
        if response.status != 200:
            raise RefusedError(str(self._endpoint.refusal(self.name, response)), response.status)
        reply: ModelReply = response.content
        return reply


def _read_reply(facts: Any) -> ModelReply:
    """Read the message of a server's response; raise if it is incomplete."""
    choice = facts["choices"][0]
    message = choice["message"]
    text = message.get("content")
    if not isinstance(text, str | None):
        raise TypeError(f"the message is {type(text).__name__}")
    refused = bool(message.get("refusal")) or choice.get("finish_reason") == "content_filter"
    return ModelReply(text or "", counted(facts.get("usage")), refused)
