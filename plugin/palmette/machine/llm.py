"""One interface to language models of LangChain and LlamaIndex, callables, and servers of OpenAI's protocol."""

from __future__ import annotations

import contextvars
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol
from uuid import uuid4

from palmette.errors import ConfigError, PalmetteError, RemoteError, shown
from palmette.machine.endpoint import (
    OPENAI_URL,
    Endpoint,
    StatusError,
    counted,
    hide_key,
    read_key,
    split_name,
    told_by,
)

Message = dict[str, str]
"""A message of a chat: ``{"role": "system" | "user" | "assistant", "content": text}``."""
STREAM_ATTEMPTS = 2
"""Times that a streamed call is sent before its failure counts: somebody waits for it."""
LETTERS_PER_TOKEN = 4
"""Characters of a token where a model counts none."""


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


@dataclass
class ChatUsage:
    """Calls of a model, and their tokens where the model counts them."""

    calls: int = 0
    prompt_tokens: int = 0
    reply_tokens: int = 0
    is_cut: bool = False
    """Whether a reply ended at its budget of tokens."""

    def count(self, usage: Any) -> None:
        """Add what a model counted, under OpenAI's names or LangChain's; anything else adds nothing."""
        self.prompt_tokens += counted(usage, "prompt_tokens", "input_tokens")
        self.reply_tokens += counted(usage, "completion_tokens", "output_tokens")


@dataclass(frozen=True)
class ChatCall:
    """Messages of a chat, limits of the reply, where its tokens are counted, and what ends it."""

    messages: Sequence[Message]
    max_tokens: int
    seconds: float
    usage: ChatUsage
    stop: threading.Event


class LLM(Protocol):
    """A language model that completes one prompt."""

    name: str
    """Name of the model in the log of answers; answers of a model of another name are not reused.

    That of a function is its own: give a function that asks another model another name. Answers of a lambda or a
    ``partial``, whose names say nothing, are not reused.
    """

    def complete(self, prompt: str, schema: Mapping[str, Any]) -> ModelReply:
        """Return the model's reply, as JSON of the schema where the model supports that."""

    def stop(self) -> None:
        """Begin no further attempt of the calls that are running; nothing where nobody but the model can end them."""
        return None

    def pieces(self, call: ChatCall) -> Iterator[str]:
        """Yield the pieces of a reply to a chat as they come."""


def chat(
    model: LLM, messages: Sequence[Message], *, max_tokens: int, seconds: float, usage: ChatUsage, stop: threading.Event
) -> Iterator[str]:
    """Yield the pieces of a model's reply, from a thread of its own: closing the iterator abandons the call at once.

    Whatever the model, the reply ends after ``max_tokens`` (about four characters each), and it is an error if it is
    not whole within ``seconds``, or has no text.
    """
    usage.calls += 1
    end, context = time.monotonic() + seconds, contextvars.copy_context()
    pieces: queue.SimpleQueue[str | BaseException | None] = queue.SimpleQueue()
    call = ChatCall(messages, max_tokens, seconds, usage, stop)
    threading.Thread(target=context.run, args=(_fill, pieces, model, call), name="palmette chat", daemon=True).start()
    written, most = 0, max_tokens * LETTERS_PER_TOKEN
    try:
        while written <= most:
            try:
                piece = pieces.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                raise LLMError(
                    f"the language model {model.name} did not finish within {seconds:g} s: allow more, or ask again"
                ) from None
            if piece is None:
                break
            if isinstance(piece, BaseException):
                raise piece
            yield piece[: most + 1 - written]  # one more than is allowed says that it is cut
            written += len(piece)
        else:
            usage.is_cut = True
    finally:
        stop.set()
    if not written:
        allowed = f"allow it more than {max_tokens} tokens"
        raise LLMError(f"the language model {model.name} wrote nothing: ask again, or {allowed}")


def _fill(pieces: queue.SimpleQueue[str | BaseException | None], model: LLM, call: ChatCall) -> None:
    """Put the pieces of a reply into a queue, then ``None``, or the error that ends them."""
    end: BaseException | None = None
    try:
        for piece in model.pieces(call):
            if call.stop.is_set():
                raise LLMError("the call was stopped")
            if not isinstance(piece, str):
                raise LLMError(f"the llm must give text, got {type(piece).__name__} {shown(piece)}")
            if piece:
                pieces.put(piece)
    except PalmetteError as error:
        end = error
    except Exception as error:  # of a framework, or of the user's function
        reason = hide_key(f"{type(error).__name__} {error}")[:500]
        end = LLMError(f"the language model {model.name} failed: {reason}")
        end.__cause__ = error
    pieces.put(end)


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


class Call(LLM):
    """A callable ``prompt -> text``."""

    def __init__(self, call: Callable[[str], str]) -> None:
        self.call, self.name = call, str(getattr(call, "__qualname__", type(call).__name__))
        if isinstance(call, partial) or self.name.endswith("<lambda>"):
            self.name += f" {uuid4().hex}"  # a name that says nothing becomes one that no other has

    def complete(self, prompt: str, schema: Mapping[str, Any]) -> ModelReply:  # noqa: D102
        text = self.call(prompt)
        if not isinstance(text, str):
            raise LLMError(f"the llm must return a str, got {type(text).__name__} {shown(text)}")
        return ModelReply(text)

    def pieces(self, call: ChatCall) -> Iterator[str]:  # noqa: D102
        reply: Any = self.call(call.messages)  # type: ignore[arg-type]  # a function of a chat takes its messages
        if isinstance(reply, str):
            yield reply
        elif isinstance(reply, Iterable):
            yield from reply
        else:
            raise LLMError(f"the llm must return a str or pieces of it, got {type(reply).__name__} {shown(reply)}")


class LangChain(LLM):
    """A LangChain chat model or LLM, with its own retries."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.name = str(getattr(model, "model_name", None) or getattr(model, "model", None) or type(model).__name__)

    def complete(self, prompt: str, schema: Mapping[str, Any]) -> ModelReply:  # noqa: D102
        message = self.model.invoke(prompt)
        usage = getattr(message, "usage_metadata", None)
        extra = getattr(message, "additional_kwargs", {})
        return ModelReply(_text_of(message), counted(usage, "total_tokens"), bool(extra.get("refusal")))

    def pieces(self, call: ChatCall) -> Iterator[str]:  # noqa: D102
        for chunk in self.model.stream([(message["role"], message["content"]) for message in call.messages]):
            call.usage.count(getattr(chunk, "usage_metadata", None))
            yield _text_of(chunk)


def _text_of(message: Any) -> str:
    """Return the text of a LangChain message, or of a plain LLM's reply."""
    content = getattr(message, "content", message)
    if isinstance(content, list):  # blocks of a multimodal message
        content = "".join(part if isinstance(part, str) else str(part.get("text", "")) for part in content)
    return str(content)


class LlamaIndex(LLM):
    """A LlamaIndex LLM, with its own retries."""

    def __init__(self, model: Any) -> None:
        self.model, metadata = model, getattr(model, "metadata", None)
        self.name = str(getattr(metadata, "model_name", None) or type(model).__name__)

    def complete(self, prompt: str, schema: Mapping[str, Any]) -> ModelReply:  # noqa: D102
        response = self.model.complete(prompt)
        return ModelReply(str(response.text), counted(getattr(response, "additional_kwargs", None), "total_tokens"))

    def pieces(self, call: ChatCall) -> Iterator[str]:  # noqa: D102
        from llama_index.core.base.llms.types import ChatMessage

        chunk = None
        for chunk in self.model.stream_chat([ChatMessage(**message) for message in call.messages]):
            yield chunk.delta or ""
        call.usage.count(getattr(chunk, "additional_kwargs", None))


class OpenAI(LLM):
    """A model behind OpenAI's chat protocol: OpenAI itself, vLLM, Ollama, llama.cpp and others.

    The key is read from OPENAI_API_KEY for every request, and is not stored.
    """

    def __init__(self, model: str, base_url: str | None = None) -> None:
        self.name, self._endpoint = model, Endpoint("/chat/completions", base_url, error=LLMError)
        self.url = self._endpoint.base_url
        self._stopped = threading.Event()
        self._structured = True  # until the server refuses a schema
        self._counting: dict[str, Any] = {"stream_options": {"include_usage": True}}
        self._limit_name = "max_tokens"

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

    def pieces(self, call: ChatCall) -> Iterator[str]:  # noqa: D102
        if self._endpoint.base_url == OPENAI_URL and not read_key():
            raise LLMError(f"OPENAI_API_KEY is not set, which {OPENAI_URL} needs: set it to a key of this server")
        end = time.monotonic() + call.seconds
        for _ in range(3):  # some servers know neither usage in streams nor the older name of the limit
            body = {"model": self.name, "messages": list(call.messages), "stream": True}
            body |= {self._limit_name: call.max_tokens, **self._counting}
            try:
                yield from self._read_stream(body, max(0.01, end - time.monotonic()), call)
                return
            except StatusError as error:
                message = told_by(error.reply.content)
                renamed = "max_completion_tokens" in message and self._limit_name != "max_completion_tokens"
                if error.reply.status in (400, 422) and renamed:
                    self._limit_name = "max_completion_tokens"
                elif error.reply.status in (400, 422) and self._counting:
                    self._counting = {}
                else:
                    refusal = str(self._endpoint.refusal(self.name, error.reply))
                    raise RefusedError(refusal, error.reply.status) from error
        raise LLMError(f"{self._endpoint.url} takes no request of a streamed chat")

    def _read_stream(self, body: Mapping[str, Any], seconds: float, call: ChatCall) -> Iterator[str]:
        """Yield the text of a streamed reply; raise if it is refused, or breaks off."""
        is_whole, usage = False, call.usage
        limits: dict[str, Any] = {"seconds": seconds, "attempts": STREAM_ATTEMPTS, "stop": call.stop}
        for event in self._endpoint.send(body, lambda event: event, **limits):  # an error ends the connection, too
            if event == "[DONE]":
                return
            try:
                if "error" in event:
                    raise LLMError(f"{self._endpoint.url} failed in the middle of its reply: {told_by(event)}")
                usage.count(event.get("usage"))
                for choice in event["choices"][:1]:
                    text = (choice.get("delta") or choice.get("message") or {}).get("content") or ""
                    usage.is_cut = usage.is_cut or choice.get("finish_reason") == "length"
                    is_whole = is_whole or bool(choice.get("finish_reason")) or "message" in choice
                    yield text
            except (LookupError, TypeError, AttributeError) as error:
                raise LLMError(f"{self._endpoint.url} sent an unusable reply: {hide_key(shown(event))}") from error
        if not is_whole:
            raise LLMError(f"{self._endpoint.url} broke off in the middle of its reply: ask again")


def _read_reply(facts: Any) -> ModelReply:
    """Read the message of a server's response; raise if it is incomplete."""
    choice = facts["choices"][0]
    message = choice["message"]
    text = message.get("content")
    if not isinstance(text, str | None):
        raise TypeError(f"the message is {type(text).__name__}")
    refused = bool(message.get("refusal")) or choice.get("finish_reason") == "content_filter"
    return ModelReply(text or "", counted(facts.get("usage"), "total_tokens"), refused)
