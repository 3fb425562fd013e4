"""The command ``cache``."""

from __future__ import annotations

import argparse
import json
from datetime import datetime

from palmette.cli.commands import describe
from palmette.errors import NotFoundError


def _add_cache(command: argparse.ArgumentParser) -> None:
    examples = "palmette cache\npalmette cache --clear sentence-transformers/all-MiniLM-L6-v2"
    add = describe(command, "", examples, "--json")
    add(
        "--clear",
        nargs="?",
        const="",
        metavar="ENCODER",
        help="delete all encodings, or those of one encoder",
    )


def run_cache(args: argparse.Namespace) -> None:
    """Show or clear the cache."""
    from palmette.encoder.cache import EncodingCache

    cache = EncodingCache()
    if args.clear is not None:
        names = sorted({entry.encoder for entry in cache.entries()})
        if args.clear and args.clear not in names:
            raise NotFoundError(
                f"the cache {cache.root} has nothing of {args.clear!r}, but of: {', '.join(names) or 'no encoder'}"
            )
        freed = cache.clear(args.clear or None)
        print(json.dumps({"freed": freed}) if args.json else f"freed {freed / 1e6:,.1f} MB in {cache.root}")
        return
    rows = [entry._asdict() for entry in cache.entries()]
    if args.json:
        print(json.dumps({"path": str(cache.root), "limit": cache.max_bytes, "entries": rows}, indent=2))
        return
    size = sum(row["bytes"] for row in rows)
    print(f"{cache.root}: {size / 1e6:,.1f} MB of {cache.max_bytes / 1e6:,.0f}")
    for row in rows:
        used = datetime.fromtimestamp(row["used"]).astimezone().strftime("%Y-%m-%d %H:%M")
        megabytes = f"{row['bytes'] / 1e6:,.1f} MB"
        print(f"{megabytes:>12}  {row['texts']:>9,} texts  {row['output']:<9}  {used}  {row['encoder']}")
