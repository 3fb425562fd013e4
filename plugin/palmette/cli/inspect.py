"""``palmette inspect CKPT_OR_DIR``."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from palmette.cli.parser import example


def add(command: argparse.ArgumentParser, given: Sequence[str]) -> None:
    """Arguments."""
    command.add_argument("what", help="checkpoint folder, Hub repository or index folder")
    command.add_argument("--revision", help="branch, tag or commit of a Hub repository")
    command.add_argument("--json", action="store_true", help="print JSON")
    example(
        command,
        "palmette inspect ckpt\npalmette inspect my-index --json\npalmette inspect me/ckpt --revision v1",
    )


def run(args: argparse.Namespace) -> None:
    """Open, collect, print."""
    from palmette.index import MODEL, Index
    from palmette.registry import load_model

    folder = Path(args.what)
    facts: dict[str, Any] = {}
    if (folder / MODEL).is_dir():
        with Index.open(folder, device="cpu") as index:
            model = index.model
            facts["index"] = dataclasses.asdict(index.stats())
    else:
        model = load_model(args.what, revision=args.revision, device="cpu")
    facts["model"] = {
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
    print(json.dumps(facts, indent=2) if args.json else "\n".join(_lines(facts)))


def _lines(facts: Mapping[str, Any], indent: int = 0) -> list[str]:
    """Nested facts as indented text."""
    lines = []
    for name, value in facts.items():
        if isinstance(value, Mapping):
            lines += [" " * indent + f"{name}:", *_lines(value, indent + 2)] if value else []
        elif value is not None:
            lines.append(" " * indent + f"{name}: {value}")
    return lines
