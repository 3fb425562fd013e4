"""``palmette pull REPO``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from palmette.cli.parser import example


def add(command: argparse.ArgumentParser, given: Sequence[str]) -> None:
    """Arguments."""
    command.usage = "palmette pull REPO [options]"
    command.add_argument("repo", help="Hub repository, such as me/ckpt")
    command.add_argument(
        "--revision", help="branch, tag or commit; pin a commit to be sure of the same weights"
    )
    command.add_argument(
        "--out", type=Path, help="copy into this folder (default: keep it in the Hub's cache)"
    )
    command.add_argument("--cache-dir", type=Path, help="Hub cache to use")
    example(command, "palmette pull me/ckpt\npalmette pull me/ckpt --revision v1 --out ckpt")


def run(args: argparse.Namespace) -> None:
    """Fetch, verify, say where it lies."""
    from palmette.hub import pull

    print(pull(args.repo, args.out, revision=args.revision, cache_dir=args.cache_dir))
