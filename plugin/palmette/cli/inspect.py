"""``palmette inspect CKPT_OR_DIR``."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palmette.cli.parser import example
from palmette.errors import ConfigError

if TYPE_CHECKING:
    from palmette.model import Model


def add(command: argparse.ArgumentParser, given: Sequence[str]) -> None:
    """Arguments."""
    command.usage = "palmette inspect CKPT_OR_INDEX [options]"
    command.add_argument("what", help="checkpoint folder, Hub repository or index folder")
    command.add_argument("--revision", help="branch, tag or commit of a Hub repository")
    command.add_argument("--json", action="store_true", help="print JSON")
    drawn = command.add_argument_group("the tree of an index, drawn")
    drawn.add_argument(
        "--html", type=Path, metavar="FILE", help="write it as one page that needs nothing else"
    )
    drawn.add_argument(
        "--query",
        action="append",
        default=[],
        metavar="TEXT",
        help="light up its way on the page; may be repeated",
    )
    example(
        command,
        "palmette inspect ckpt\npalmette inspect my-index --json\npalmette inspect me/ckpt --revision v1\n"
        'palmette inspect my-index --html tree.html --query "how do I …?"',
    )


def run(args: argparse.Namespace) -> None:
    """Open, collect, print, draw."""
    from palmette.index import MODEL, Index
    from palmette.methods.tree import TreeInspection
    from palmette.registry import load_model

    folder = Path(args.what)
    if not (folder / MODEL).is_dir():
        if args.html:
            raise ConfigError(
                f"--html draws the tree of an index; {args.what} is none: make one with `palmette index`"
            )
        _show({"model": _facts(load_model(args.what, revision=args.revision, device="cpu"))}, args.json)
        return
    with Index.open(folder, device="cpu") as index:
        facts: dict[str, Any] = {"index": dataclasses.asdict(index.stats()) | index.survey()}
        facts["model"] = _facts(index.model)
        if not args.html:
            _show(facts, args.json)
            return
        inspection = TreeInspection.of(index, queries=args.query)
        facts["html"] = str(inspection.save_html(args.html))
        if args.json:
            _show(facts, True)
        else:
            print(f"{facts['html']}: {inspection.documents:,} documents on {len(inspection.leaves):,} leaves")


def _facts(model: Model) -> dict[str, Any]:
    return {
        "method": model.method,
        "fingerprint": model.fingerprint,
        "origin": model.origin,
        "revision": model.revision,
        "encoder": {
            "name": model.encoder.name,
            "revision": model.encoder.revision,
            "width": model.encoder.dimension,
        },
        "options": model.config.to_dict(),
        "structure": model.describe(),
        "trained": model.record.to_dict(),
    }


def _show(facts: Mapping[str, Any], as_json: bool) -> None:
    print(json.dumps(facts, indent=2) if as_json else "\n".join(_lines(facts)))


def _lines(facts: Mapping[str, Any], indent: int = 0) -> list[str]:
    """Nested facts as indented text."""
    lines = []
    for name, value in facts.items():
        if isinstance(value, Mapping):
            lines += [" " * indent + f"{name}:", *_lines(value, indent + 2)] if value else []
        elif value is not None:
            lines.append(" " * indent + f"{name}: {value}")
    return lines
