"""Arguments shared by commands. No heavy package is imported here, since a search may not need one."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

from palmette.errors import ConfigError, MissingExtraError

CHECKPOINT = "checkpoint folder or Hub repository"


def read_lexical(text: str) -> float | str:
    """Weight of words, or ``auto``; the search checks its range."""
    try:
        return text if text == "auto" else float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to 1, or auto, got {text!r}") from error


def read_encoder(text: str) -> Any:
    """Name of an encoder, or JSON of a name with options: ``{"name": "…", "truncate": 256}``."""
    if not text.startswith("{"):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"must be a name, or JSON with a name, got {text!r} ({error})") from error


def read_reranker(text: str) -> Any:
    """Name of a reranker, JSON of a ``model`` with options, or ``none``."""
    return False if text == "none" else read_encoder(text)


SHARED: dict[str, dict[str, Any]] = {
    "checkpoint": {"help": CHECKPOINT},
    "index": {"help": "index folder, or qdrant://host:6333/name"},
    "--revision": {"help": "branch, tag or commit of a Hub repository"},
    "--encoder": {
        "type": read_encoder,
        "help": "reads the question instead of the index's own: an export of it, such as onnx:FOLDER, or the server "
        "that it was made with, openai:MODEL@https://host/v1",
    },
    "--device": {"help": "cpu, cuda, mps; the best there is by default"},
    "--filter": {"help": "conditions on metadata, as JSON"},
    "--boost": {"help": """log-odds by metadata, as JSON: '{"date": {"half_life": "90d"}, "kind": {"guide": 0.5}}'"""},
    "--rerank": {
        "type": read_reranker,
        "help": "second stage that judges hits whose order is open: cross-encoder:FOLDER, rerank:MODEL@https://host/v1 "
        "(its key in PALMETTE_RERANK_KEY), JSON of a model with options; or none, where a service has one",
    },
    "--lexical": {"type": read_lexical, "help": "weight of words: 0 (the method alone) … 1, or auto"},
    "--quiet": {"dest": "progress", "action": "store_const", "const": False, "help": "no progress bars"},
    "--json": {"action": "store_true", "help": "print JSON"},
    "--explain": {"action": "store_true", "help": "say why each document matched, or which gave the answer"},
}
"""Arguments of several commands."""


def describe(
    command: argparse.ArgumentParser, usage: str, examples: str, *shared: str
) -> Callable[..., argparse.Action]:
    """Set usage and examples, add shared arguments, and return the function that adds further ones."""
    command.usage = f"{command.prog} {usage} [options]"
    command.epilog = "examples:\n" + "\n".join(f"  {line}" for line in examples.strip().splitlines())
    for name in shared:
        command.add_argument(name, **SHARED[name])
    return command.add_argument


def read_value(text: str) -> Any:
    """Parse JSON, or a list without brackets (``1,4``); anything else is a text."""
    for written in (text, f"[{text}]") if "," in text else (text,):
        with suppress(ValueError, RecursionError):
            return json.loads(written)
    return text


def read_options(words: Sequence[str]) -> dict[str, Any]:
    """``["--level", "5", "--layers=1,4", "--flat"]`` → ``{"level": 5, "layers": [1, 4], "flat": True}``."""
    options: dict[str, Any] = {}
    waiting = ""
    for word in words:
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            name = flag[2:].replace("-", "_")
            if name in ("query", "k", "filter", "threshold", "explain"):
                raise ConfigError(f"{flag} is no option of this command")
            options[name], waiting = read_value(value) if equals else True, "" if equals else name
        elif waiting:
            options[waiting], waiting = read_value(word), ""
        else:
            raise ConfigError(f"unexpected argument {word!r}: method options are written --name value")
    return options


def search_options(args: argparse.Namespace) -> dict[str, Any]:
    """Options of the method, weight of words, filter and boost."""
    options = read_options(args.extra)
    if args.lexical is not None:
        options["lexical"] = args.lexical
    for name in ("filter", "boost"):
        if (text := getattr(args, name, None)) is not None:
            try:
                options[name] = {**json.loads(text)}
            except (TypeError, ValueError, RecursionError) as error:
                raise ConfigError(f"--{name} must be JSON, an object, got {text!r} ({error})") from error
    return options


def need_module(module: str, extra: str, purpose: str) -> None:
    """Raise MissingExtraError unless a package of an extra is installed."""
    try:
        import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtraError(module, extra, purpose) from error
