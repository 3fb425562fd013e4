"""``palmette evaluate CKPT DATA``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from palmette.cli.parser import example, options_of, read_lexical
from palmette.errors import ConfigError

TAKES_OPTIONS = True


def add(command: argparse.ArgumentParser, given: Sequence[str]) -> None:
    """Arguments."""
    command.usage = "palmette evaluate CKPT DATA [options]"
    command.add_argument("checkpoint", help="checkpoint folder or Hub repository")
    command.add_argument("data", help="BEIR folder, or a JSONL of pairs; for a reader, of questions")
    command.add_argument("--split", default="test", help="which judgements")
    command.add_argument(
        "--baselines", action="store_true", help="measure the untrained encoder and BM25 beside it"
    )
    command.add_argument(
        "--lexical",
        default=0.0,
        type=read_lexical,
        help="how much words count: 0 (the method alone) … 1, or auto",
    )
    command.add_argument(
        "--reader", help="answer the questions too: a reader's checkpoint folder or repository"
    )
    command.add_argument("--passages", type=int, default=5, help="how many documents the reader is given")
    command.add_argument(
        "--card", action="store_true", help="write the table into the checkpoint's README.md"
    )
    command.add_argument("--revision", help="branch, tag or commit of a Hub repository")
    command.add_argument("--device", help="cpu, cuda, mps; the best there is by default")
    command.add_argument("--no-titles", action="store_true", help="leave titles out of the texts")
    command.add_argument("--quiet", action="store_true", help="no progress bars")
    command.add_argument("--json", action="store_true", help="print JSON")
    example(
        command,
        "palmette evaluate ckpt squad/ --split test --baselines\n"
        "palmette evaluate ckpt squad/ --split dev --level 6 --json\n"
        "palmette evaluate ckpt squad/ --reader my-reader --passages 10",
    )


def run(args: argparse.Namespace) -> None:
    """Measure and print."""
    from palmette.data import load_data
    from palmette.evaluation import evaluate
    from palmette.hub import LAYOUT
    from palmette.reader import Reader, load_reading
    from palmette.registry import load_model

    model = load_model(args.checkpoint, revision=args.revision, device=args.device)
    reader = None if args.reader is None else Reader.from_pretrained(args.reader, device=args.device)
    titles = not args.no_titles
    report = evaluate(
        model,
        load_data(args.data, titles=titles) if reader is None else load_reading(args.data, titles=titles),
        split=args.split,
        baselines=args.baselines,
        lexical=args.lexical,
        reader=reader,
        passages=args.passages,
        progress=False if args.quiet else None,
        **options_of(args.extra),
    )
    if args.card:
        card = Path(args.checkpoint) / LAYOUT.card
        if not card.parent.is_dir():
            raise ConfigError(
                f"--card writes into a checkpoint folder, but {args.checkpoint!r} is none: pull it first"
            )
        card.write_text(model.card(report), encoding="utf-8")
    print(json.dumps(report.to_dict(), indent=2) if args.json else report.table())
