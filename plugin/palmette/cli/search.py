"""``palmette search DIR QUERY``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from palmette.cli.parser import example, options_of, read_filter, read_lexical
from palmette.types import Hit

TAKES_OPTIONS = True


def add(command: argparse.ArgumentParser, given: Sequence[str]) -> None:
    """Arguments."""
    command.usage = "palmette search INDEX QUERY ... [options]"
    command.add_argument("index", help="index folder")
    command.add_argument("query", nargs="+", help="one query, or several")
    command.add_argument("-k", type=int, default=5, help="how many documents")
    command.add_argument("--filter", help="conditions on metadata, as JSON")
    command.add_argument("--threshold", type=float, help="leave out documents that score less")
    command.add_argument(
        "--lexical", default=None, help="how much words count: 0 … 1, or auto", type=read_lexical
    )
    command.add_argument("--explain", action="store_true", help="say why each document matched")
    command.add_argument(
        "--engine", default="exact", help="what searches: exact, faiss, ivf, hnsw, ivf:nlist=256,nprobe=8"
    )
    command.add_argument("--device", help="cpu, cuda, mps; the best there is by default")
    command.add_argument("--json", action="store_true", help="print JSON")
    example(
        command,
        'palmette search my-index "how do I copy a folder?" -k 5 --explain\n'
        'palmette search my-index "copy a folder" --level 6            a coarser level of the tree\n'
        """palmette search my-index "copy" --filter '{"module": "shutil"}'\n"""
        'palmette search my-index "error 0x80070005" --lexical 0.8      words count more\n'
        'palmette search my-index "first question" "second question" --json\n\n'
        "Options of the method, such as --level for a tree, are passed on.",
    )


def run(args: argparse.Namespace) -> None:
    """Search and print."""
    from palmette.index import Index

    options = options_of(args.extra)
    if args.lexical is not None:
        options["lexical"] = args.lexical
    with Index.open(args.index, device=args.device, engine=args.engine) as index:
        results = index.search(
            args.query, args.k, filter=read_filter(args.filter), threshold=args.threshold, **options
        )
        if args.json:
            found = [[_as_json(hit, args.explain) for hit in hits] for hits in results]
            print(json.dumps(found[0] if len(args.query) == 1 else found, ensure_ascii=False, indent=2))
            return
        for query, hits in zip(args.query, results, strict=True):
            if len(args.query) > 1:
                print(f"\n? {query}")
            for rank, hit in enumerate(hits, 1):
                _show(rank, hit, args.explain)
            if not hits:
                print("nothing found")


def _as_json(hit: Hit, explain: bool) -> dict[str, Any]:
    document = hit.document
    shown: dict[str, Any] = {
        "id": hit.id,
        "score": hit.score,
        "text": document.content,
        "metadata": dict(document.metadata),
    }
    if explain:
        shown["explanation"] = hit.explain().to_dict()
    return shown


def _show(rank: int, hit: Hit, explain: bool) -> None:
    first = " ".join(hit.document.content.split())
    print(f"{rank:>2}. {hit.score:.4f}  {hit.id}\n      {first[:160]}{'…' if len(first) > 160 else ''}")
    if explain:
        print(f"      why: {hit.explain()}")
