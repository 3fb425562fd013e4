"""What the site needs beyond Markdown: equations as MathML, measured tables, the help of every command.

Nothing is fetched and no script runs in the reader's browser for any of it.
"""

from __future__ import annotations

import contextlib
import html
import io
import os
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
FORMULA = re.compile(r'<(?:span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</(?:span|div)>', re.DOTALL)
ROLE = re.compile(r":(?:class|meth|func|mod|attr|data):<code>([^<]+)</code>")
DIRECTIVE = re.compile(r"<p>\.\. code-block:: \w+</p>\n?")
HELP = "<!-- help of every command -->"


def on_config(config: Any, **_: Any) -> Any:
    """List the measured tables, whichever there are, under their own titles."""
    tables = sorted(RESULTS.glob("*.md"))
    titles = (path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ") for path in tables)
    listed = [{title: f"measured/{path.name}"} for title, path in zip(titles, tables, strict=True)]
    config.nav.append({"Measured": listed})
    return config


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Show the measured tables as they lie beside the benchmarks."""
    for path in sorted(RESULTS.iterdir()):
        if path.suffix in (".md", ".svg"):
            files.append(File.generated(config, f"measured/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put in what ``palmette COMMAND --help`` prints."""
    if HELP not in markdown:
        return markdown
    from palmette.cli import COMMANDS

    sections = (f"## palmette {name}\n\n```text\n{help_of(name)}\n```" for name in COMMANDS)
    return markdown.replace(HELP, "\n\n".join(sections))


def on_page_content(content: str, **_: Any) -> str:
    """Turn LaTeX into MathML, which browsers draw themselves, and the roles of docstrings into links."""
    return DIRECTIVE.sub("", ROLE.sub(_linked, FORMULA.sub(_drawn, content)))


def _linked(match: re.Match[str]) -> str:
    """A name as code, and a link where the reference has it."""
    name = match[1].removeprefix("~")
    shown = name.rpartition(".")[2] if match[1].startswith("~") else name
    return f'<autoref optional identifier="{name}"><code>{shown}</code></autoref>'


def _drawn(match: re.Match[str]) -> str:
    block = match[1] == "["
    drawn: str = convert(html.unescape(match[2]).strip(), display="block" if block else "inline")
    return f'<div class="formula">{drawn}</div>' if block else drawn


def help_of(command: str) -> str:
    """The help of a command."""
    from palmette.cli import build_parser

    os.environ["COLUMNS"] = "84"
    shown = io.StringIO()
    words = [command, "--help"]
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        build_parser(words).parse_args(words)
    return shown.getvalue().rstrip()
