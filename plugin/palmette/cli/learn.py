"""The commands that make training data: ``palmette ask`` lets a language model write questions."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from palmette.cli.arguments import describe
from palmette.cli.train import add_config_options
from palmette.config import given


def _add_ask(command: argparse.ArgumentParser) -> None:
    from palmette.learning.questions import QuestionOptions
    from palmette.model import DEFAULT_ENCODER

    add = describe(
        command,
        "DOCUMENTS --llm openai:MODEL --out FOLDER",
        "palmette ask docs/ --llm openai:gpt-4.1-mini --out asked --estimate        what it would cost\n"
        "palmette ask docs/ --llm openai:gpt-4.1-mini --out asked --max-calls 500   a sample; run again to go on\n"
        "OPENAI_BASE_URL=http://localhost:11434/v1 palmette ask docs/ --llm openai:llama3 --out asked\n"
        "palmette train space asked --out ckpt",
        *("--quiet", "--json"),
    )
    add("documents", help="folder, JSONL file, or an index")
    add("--llm", required=True, help="openai:MODEL: OpenAI's or any server of its protocol (OPENAI_BASE_URL)")
    add("--out", required=True, type=Path, help="folder of answers and pairs; a run goes on where the last one ended")
    add("--encoder", default=DEFAULT_ENCODER, help="encoder of the search that questions are tried on")
    add("--estimate", action="store_true", help="say how many calls and tokens it takes, and ask nothing")
    add_config_options(command.add_argument_group("questions"), QuestionOptions, {})


def _run_ask(args: argparse.Namespace) -> None:
    from palmette.learning.questions import QuestionOptions, estimate_questions, write_questions

    options = given({name: getattr(args, name, None) for name in QuestionOptions.choices()})
    documents = _documents(args.documents)
    estimate = estimate_questions(documents, args.out, args.llm, **options)
    told = f"{estimate.passages:,} passages: {estimate.calls:,} calls of about {estimate.tokens:,} tokens together"
    if args.estimate:
        print(json.dumps(asdict(estimate)) if args.json else told)
        return
    if args.progress is None:
        print(told, file=sys.stderr)
    data, report = write_questions(
        documents, args.llm, args.out, encoder=args.encoder, progress=args.progress, **options
    )
    if args.json:
        print(json.dumps({"out": str(args.out), **asdict(report)}, indent=2))
        return
    dropped = f"{report.repeated} repeated, {report.not_found} not found again"
    print(f"{report.kept:,} questions about {len(data.corpus):,} passages in {args.out} (dropped: {dropped})")
    print(f"{report.calls:,} calls, {report.tokens:,} tokens, {report.reused:,} answers from before; ", end="")
    print(f"{report.refused} refused, {report.unusable} unusable, {report.left:,} calls left")
    for error in report.errors:
        print(f"failed: {error}", file=sys.stderr)
    print(f"next: palmette train space {args.out} --out ckpt")


def _documents(place: str) -> Any:
    """Return the documents of an index, or the place itself."""
    from palmette.index import Index
    from palmette.store.local.folder import COMMIT

    if not (Path(place) / COMMIT).exists():
        return place
    with Index.open(place, device="cpu", verify=False) as index:
        return list(index.documents())
