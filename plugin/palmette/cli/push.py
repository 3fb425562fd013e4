"""``palmette push CKPT REPO``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from palmette.cli.parser import example


def add(command: argparse.ArgumentParser, given: Sequence[str]) -> None:
    """Arguments."""
    command.usage = "palmette push CKPT REPO [options]"
    command.add_argument("checkpoint", type=Path, help="checkpoint folder")
    command.add_argument("repo", help="Hub repository, such as me/ckpt; made when it is not there")
    command.add_argument("--private", action="store_true", help="make the repository private")
    command.add_argument("--branch", help="commit to this branch")
    command.add_argument("--tag", help="tag the commit")
    command.add_argument("--message", help="commit message")
    example(command, "palmette push ckpt me/ckpt\npalmette push ckpt me/ckpt --private --tag v1")


def run(args: argparse.Namespace) -> None:
    """Verify, upload, say where it is."""
    from palmette.hub import push_checkpoint

    print(
        push_checkpoint(
            args.checkpoint,
            args.repo,
            private=args.private or None,
            branch=args.branch,
            create_tag=args.tag,
            commit_message=args.message,
        )
    )
