"""``palmette answer INDEX QUESTION --reader CKPT``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from palmette.cli.parser import example, options_of, read_filter, read_lexical

if TYPE_CHECKING:
    from palmette.reader import Answer

TAKES_OPTIONS = True


def add(command: argparse.ArgumentParser, given: Sequence[str]) -> None:
    """Arguments."""
    command.usage = "palmette answer INDEX QUESTION [QUESTION ...] --reader READER [options]"
    command.add_argument("index", help="index folder")
    command.add_argument("question", nargs="+", help="one question, or several")
    command.add_argument("--reader", required=True, help="the reader: checkpoint folder or Hub repository")
    command.add_argument("--revision", help="branch, tag or commit of the reader's repository")
    command.add_argument("-k", type=int, default=5, help="how many documents are read")
    command.add_argument("--filter", help="conditions on metadata, as JSON")
    command.add_argument(
        "--threshold",
        type=float,
        help="the least probability of there being an answer, 0 to answer always (default: as trained)",
    )
    command.add_argument(
        "--lexical",
        default=None,
        help="how much words count in the search: 0 … 1, or auto",
        type=read_lexical,
    )
    command.add_argument(
        "--explain", action="store_true", help="say which documents gave the answer, and others"
    )
    command.add_argument("--device", help="cpu, cuda, mps; the best there is by default")
    command.add_argument("--json", action="store_true", help="print JSON")
    example(
        command,
        'palmette answer my-index "when did it begin?" --reader ckpt --explain\n'
        'palmette answer my-index "when did it begin?" --reader me/reader -k 10 --threshold 0\n\n'
        "A reader is trained with `palmette train reader`. Options of the index's method, such as --level for a tree,\n"
        "are passed on.",
    )


def run(args: argparse.Namespace) -> None:
    """Search, read, print."""
    from palmette.index import Index
    from palmette.reader import Reader

    options = options_of(args.extra)
    if args.lexical is not None:
        options["lexical"] = args.lexical
    reader = Reader.from_pretrained(args.reader, revision=args.revision, device=args.device)
    with Index.open(args.index, device=args.device) as index:
        found = index.search(args.question, args.k, filter=read_filter(args.filter), **options)
        answers = reader.answer(args.question, found, threshold=args.threshold)
    if args.json:
        told = [answer.to_dict() for answer in answers]
        print(json.dumps(told[0] if len(told) == 1 else told, ensure_ascii=False, indent=2))
        return
    for answer in answers:
        if len(answers) > 1:
            print(f"\n? {answer.question}")
        _show(answer, args.explain)


def _show(answer: Answer, explain: bool) -> None:
    if not answer:
        print(f"no answer found (probability that there is none: {answer.confidence:.0%})")
    for support in answer.supports[:1]:
        print(f"{_line(answer.text)}\n  {answer.confidence:.0%}  {support.document.key}")
    if explain:
        for support in answer.supports:
            print(f"    {support.share:.0%} from {support.document.key}: {_line(support.sentence)}")
        for text, confidence in answer.alternatives.items():
            print(f"    or {confidence:.0%}: {_line(text)}")


def _line(text: str) -> str:
    """One line, not too long."""
    words = " ".join(text.split())
    return words if len(words) <= 200 else f"{words[:200]}…"
