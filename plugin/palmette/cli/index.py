"""``palmette index CKPT DOCS --out DIR``."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from palmette.cli.parser import example


def add(command: argparse.ArgumentParser, given: Sequence[str]) -> None:
    """Arguments."""
    command.usage = "palmette index CKPT DOCUMENTS --out DIR [options]"
    command.add_argument("checkpoint", help="checkpoint folder or Hub repository")
    command.add_argument(
        "documents", help="JSONL of documents, a BEIR folder, or a folder of .md and .txt files"
    )
    command.add_argument(
        "--out", required=True, type=Path, help="index folder: made, or updated where it exists"
    )
    command.add_argument("--prune", action="store_true", help="delete what is in the index and not in DOCS")
    command.add_argument("--revision", help="branch, tag or commit of a Hub repository")
    command.add_argument("--device", help="cpu, cuda, mps; the best there is by default")
    command.add_argument("--batch-size", type=int, default=256, help="documents encoded at a time")
    command.add_argument(
        "--language",
        default="english",
        help="whose word endings are cut off, in a new index; none for nobody's",
    )
    command.add_argument("--no-titles", action="store_true", help="leave titles out of the texts")
    command.add_argument("--quiet", action="store_true", help="no progress bars")
    command.add_argument("--json", action="store_true", help="print the result as JSON")
    example(
        command,
        "palmette index ckpt docs.jsonl --out my-index\n"
        "palmette index me/ckpt notes/ --out my-index --revision v1\n\n"
        "Run it again with changed documents: only those are encoded and replaced.",
    )


def run(args: argparse.Namespace) -> None:
    """Create or open, then upsert."""
    from palmette.data import iter_documents
    from palmette.index import Index
    from palmette.registry import load_model

    language = None if args.language == "none" else args.language
    documents = list(iter_documents(args.documents, titles=not args.no_titles))
    model = load_model(args.checkpoint, revision=args.revision, device=args.device)
    with Index.open_or_create(args.out, model, language=language) as index:
        given = {document.key for document in documents}
        absent = [document.key for document in index.documents() if document.key not in given]
        changes = index.upsert(
            documents,
            delete=absent if args.prune else (),
            batch_size=args.batch_size,
            progress=False if args.quiet else None,
        )
        total = len(index)
    counts = {
        "added": len(changes.added),
        "updated": len(changes.updated),
        "unchanged": len(changes.unchanged),
        "deleted": len(changes.deleted),
    }
    if args.json:
        print(json.dumps({"index": str(args.out), "documents": total, **counts}))
        return
    print(f"{args.out}: {total} documents ({', '.join(f'{count} {name}' for name, count in counts.items())})")
    if absent and not args.prune:
        print(f"{len(absent)} more were there before and stay, such as {absent[0]!r}; --prune deletes them")
    print(f'next: palmette search {shlex.quote(str(args.out))} "your question" --explain')
