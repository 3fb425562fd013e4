"""The argument parser: one subcommand per module, help that teaches by example."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from palmette import __version__
from palmette.errors import ConfigError

__all__ = ["build_parser", "example", "options_of", "parse", "read_filter", "read_lexical"]

COMMANDS = {
    "train": "train a model on your documents or pairs",
    "index": "put documents into an index",
    "search": "ask an index",
    "answer": "answer a question from what an index finds, with no language model",
    "evaluate": "measure a model on judged queries, beside baselines",
    "inspect": "look into a checkpoint or an index",
    "pull": "fetch a checkpoint from the Hugging Face Hub",
    "push": "publish a checkpoint on the Hugging Face Hub",
    "demo": "train, index and ask: this Python's own documentation",
}

START = """\
from nothing to answers:
  palmette demo                                        the whole way, on documents every machine has
  palmette train tree docs.jsonl --out ckpt            no labels needed: JSONL with a "text" per line
  palmette index ckpt docs.jsonl --out my-index
  palmette search my-index "how do I …?" -k 5 --explain

`palmette COMMAND --help` shows the options of a command, with examples.
"""


class _Help(argparse.RawDescriptionHelpFormatter):
    """Keeps examples as written and shows defaults."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text = action.help
        if text and action.default not in (None, False, argparse.SUPPRESS) and "%(default)" not in text:
            return text + " (default: %(default)s)"
        return text


def build_parser(given: Sequence[str]) -> argparse.ArgumentParser:
    """The whole parser; only the command in ``given`` loads its module."""
    parser = argparse.ArgumentParser(
        prog="palmette",
        description="Trained hierarchical retrieval for RAG.",
        epilog=START,
        formatter_class=_Help,
    )
    parser.add_argument("--version", action="version", version=f"palmette {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    chosen = next((word for word in given if not word.startswith("-")), None)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", formatter_class=_Help
        )
        command.add_argument("--debug", action="store_true", help="show the traceback of an error")
        if name == chosen:
            module = import_module(f"palmette.cli.{name}")
            module.add(command, given)
            command.set_defaults(
                handler=module.run, extra=None, takes_options=getattr(module, "TAKES_OPTIONS", False)
            )
    return parser


def parse(parser: argparse.ArgumentParser, given: Sequence[str]) -> argparse.Namespace:
    """Parse; words a command does not know become method options where it takes any."""
    args, rest = parser.parse_known_args(given)
    if rest and not args.takes_options:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    args.extra = rest
    return args


def options_of(words: Sequence[str]) -> dict[str, Any]:
    """``["--level", "5", "--rerank=encoder"]`` → ``{"level": 5, "rerank": "encoder"}``."""
    options: dict[str, Any] = {}
    waiting: str | None = None
    for word in words:
        if word.startswith("--"):
            if waiting is not None:
                options[waiting] = True
            name, given, value = word[2:].partition("=")
            waiting = name.replace("-", "_")
            if given:
                options[waiting], waiting = _value(value), None
        elif waiting is not None:
            options[waiting], waiting = _value(word), None
        else:
            raise ConfigError(f"unexpected argument {word!r}: method options are written --name value")
    if waiting is not None:
        options[waiting] = True
    return options


def _value(text: str) -> Any:
    """JSON, a list without its brackets (``1,4``), or else a text."""
    for written in (text, f"[{text}]") if "," in text else (text,):
        try:
            return json.loads(written)
        except ValueError:
            continue
    return text


def read_filter(text: str | None) -> dict[str, Any] | None:
    """A filter from JSON."""
    if text is None:
        return None
    try:
        loaded = json.loads(text)
    except ValueError as error:
        raise ConfigError(
            f'--filter must be JSON such as \'{{"lang": "en"}}\', got {text!r} ({error})'
        ) from error
    if not isinstance(loaded, dict):
        raise ConfigError(f"--filter must be a JSON object, got {text!r}")
    return loaded


def read_lexical(text: str) -> float | str:
    """A weight of words, or ``auto``; the search checks its range."""
    try:
        return text if text == "auto" else float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to 1, or auto, got {text!r}") from error


def example(command: argparse.ArgumentParser, text: str) -> None:
    """Put examples under a command's help."""
    command.epilog = "examples:\n" + "\n".join(f"  {line}" for line in text.strip().splitlines())
