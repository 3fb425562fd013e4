"""The command line: ``palmette COMMAND …``. A command is two functions of its module, ``_add_…`` and ``_run_…``."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from contextlib import redirect_stdout
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from palmette import __version__
from palmette.errors import PalmetteError
from palmette.machine.text import Printed, printable

__all__ = ["COMMANDS", "build_parser", "main", "parse"]

COMMANDS = {
    "train": "train a model on your documents or pairs",
    "ask": "let a language model write questions about your documents, to train on",
    "index": "put documents into an index",
    "search": "search an index",
    "answer": "answer a question from what an index finds, in its own words or by a language model",
    "context": "gather the best sentences for a question, each with its place, for a language model",
    "overview": "show what an index is about: its topics, with words, counts and typical passages",
    "serve": "serve indexes or folders to people, programs and agents",
    "mcp": "serve an index to an agent, over the Model Context Protocol",
    "stats": "show what an index holds, and how far its running service is",
    "alias": "give an index a name, and exchange what lies behind it",
    "compare": "compare two indexes on questions",
    "evaluate": "measure a model on judged queries, beside baselines",
    "feedback": "show, export or delete what people said of hits",
    "refit": "train an index's model anew on feedback and pairs, and exchange it if that is better",
    "inspect": "look into a checkpoint or an index",
    "repair": "save all that is whole of a damaged index into a new one",
    "backup": "copy an index while others write to it",
    "restore": "check a backup and copy it back",
    "export-onnx": "write an encoder for ONNX Runtime, which answers without torch",
    "cache": "show or clear the encodings kept on this machine",
    "pull": "fetch a checkpoint from the Hugging Face Hub",
    "push": "publish a checkpoint on the Hugging Face Hub",
    "demo": "train, index and ask: this Python's own documentation",
}
MODULES = {
    **{"train": "train", "demo": "demo", "search": "ask", "answer": "ask", "context": "ask"},
    **dict.fromkeys(("ask", "feedback", "refit"), "learn"),
    **dict.fromkeys(("repair", "backup", "restore", "cache", "export-onnx"), "maintenance"),
    **dict.fromkeys(("serve", "mcp", "stats", "alias", "compare"), "serve"),
}
"""Modules of the commands that are not in ``commands``."""
TAKES_OPTIONS = ("search", "answer", "context", "evaluate")
"""Commands that take further options for the method's search."""
EPILOG = "`palmette` alone shows the way from nothing to answers; `palmette COMMAND --help` has examples."


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status (0 done, 1 a palmette error, 2 bad usage, 130 interrupted)."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug, args = False, argparse.Namespace(extra=[])
    try:
        if not words:
            from palmette.cli.demo import tour

            print(tour(COMMANDS), flush=True)
            return 0
        args = parse(build_parser(words), words)
        debug = args.debug
        with redirect_stdout(Printed(sys.stdout)), warnings.catch_warnings():
            warnings.showwarning = _show_warning
            args.handler(args)
        return 0
    except PalmetteError as error:
        if debug:
            raise
        print(printable(f"palmette: {_with_options(error, args)}"), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("palmette: interrupted; no index or checkpoint was left half written", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of the output has ended, as `head` does
        sys.stderr.close()
        return 0


def build_parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser; only the module of the command in ``words`` is loaded."""
    about = "Retrieval for RAG that says why: passages with probabilities, places and reasons."
    parser = argparse.ArgumentParser(prog="palmette", description=about, epilog=EPILOG, formatter_class=_Help)
    parser.add_argument("--version", action="version", version=f"palmette {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    chosen = next((word for word in words if not word.startswith("-")), None)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", formatter_class=_Help
        )
        command.add_argument("--debug", action="store_true", help="show the traceback of an error")
        if name == chosen:
            function = name.replace("-", "_")
            module = import_module(f"palmette.cli.{MODULES.get(name, 'commands')}")
            command.set_defaults(command=name, words=words, handler=getattr(module, f"_run_{function}"))
            getattr(module, f"_add_{function}")(command)
            command.set_defaults(known=[flag for action in command._actions for flag in action.option_strings])
    return parser


def parse(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments; unknown ones become options of the method for the commands that take them."""
    args, rest = parser.parse_known_args(words)
    if args.command == "index" and rest and all(word[:1] != "-" for word in rest):
        args.documents, rest = [*args.documents, *rest], []  # options between names
    args.extra = rest
    if rest and args.command not in TAKES_OPTIONS:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return args


def _show_warning(message: Warning | str, *place: Any, **to: Any) -> None:
    """Print a warning as errors are printed, without the line of code that it comes from."""
    print(printable(f"palmette: warning: {message}"), file=sys.stderr, flush=True)


class _Help(argparse.RawDescriptionHelpFormatter):
    """Prints examples as they are written, and shows defaults."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text = action.help
        if text and action.default not in (None, True, False, argparse.SUPPRESS) and "(default" not in text:
            return text + " (default: %(default)s)"
        return text


def _with_options(error: PalmetteError, args: argparse.Namespace) -> str:
    """Message of an error; for an unknown option also which one may be meant, and those of command and method."""
    for word in args.extra:
        flag, name = word.partition("=")[0], word.partition("=")[0][2:].replace("-", "_")
        if flag.startswith("--") and f"has no option {name!r}" in str(error):
            of_method = str(error).rpartition("Options: ")[2]
            own = [known for known in args.known if known.startswith("--")]
            of_both = [known[2:] for known in own] + of_method.replace("_", "-").split(", ") * (of_method != "none")
            near = get_close_matches(flag[2:], of_both, n=1)
            meant = f"did you mean --{near[0]}?" if near else "there is no such option."
            return f"{flag}: {meant} Options of {args.command}: {', '.join(own)}; of this index's method: {of_method}"
    return str(error)
