"""The command line: ``palmette COMMAND …``. Each command is a module with ``add`` (its arguments) and ``run``."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status (0 done, 1 a palmette error, 2 bad usage, 130 interrupted)."""
    from palmette.cli.parser import build_parser, parse
    from palmette.cli.tour import tour
    from palmette.errors import PalmetteError

    given = list(sys.argv[1:] if argv is None else argv)
    debug = False
    try:
        if not given:
            print(tour(), flush=True)
            return 0
        args = parse(build_parser(given), given)
        debug = args.debug
        return int(args.handler(args) or 0)
    except PalmetteError as error:
        if debug:
            raise
        print(_paragraph(f"palmette: {error}"), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("palmette: interrupted; no index or checkpoint was left half written", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        sys.stderr.close()
        return 0


def _paragraph(text: str) -> str:
    """Wrapped for a reader's terminal; on one line for a log."""
    if not sys.stderr.isatty():
        return text
    width = min(100, shutil.get_terminal_size().columns)
    lines = (
        textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False)
        for line in text.splitlines()
    )
    return "\n".join(line for wrapped in lines for line in wrapped or [""])
