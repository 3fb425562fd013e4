"""The commands ``index``, ``evaluate``, ``inspect``, ``pull`` and ``push``."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import palmette
from palmette.cli.arguments import CHECKPOINT, describe, read_encoder, search_options
from palmette.cli.ask import once
from palmette.errors import ConfigError, InputError, LockedError, NotFoundError, StoreError

REASONS_PRINTED = 10
"""Largest number of reasons for skipped files that are printed."""
WATCH_SECONDS = 2.0
"""Seconds between two checks of followed files."""


def _add_index(command: argparse.ArgumentParser) -> None:
    add = describe(
        command,
        "[CKPT] DOCUMENTS … --out DIR",
        "palmette index notes/ --out my-index              no model: the default encoder, nothing to train\n"
        "palmette index ckpt docs.jsonl --out my-index\n"
        "palmette index me/ckpt handbook/ wiki/ --out my-index --exclude drafts/\n"
        "palmette index notes/ --out my-index --watch      follow changes until Ctrl-C\n"
        "palmette index notes/ --out my-index --encoder openai:text-embedding-3-small\n\n"
        "Run it again with changed documents: only what changed is encoded, and what is gone is deleted. What came\n"
        "from elsewhere, by Python or from another folder, stays.",
        *("--revision", "--device", "--quiet", "--json"),
    )
    help = f"{CHECKPOINT} (none: the default encoder, or an index's own model), then folders and files of documents"
    add("documents", nargs="+", metavar="DOCUMENTS", help=help)
    add("--out", required=True, help="index to make, or to update: a folder, or qdrant://host:6333/name")
    help = "of a new index without a model: a folder or Hub name, onnx:FOLDER, openai:MODEL; or JSON of it with options"
    add("--encoder", type=read_encoder, help=help)
    add("--source", help="name of the only source; by default that of its folder or file")
    add("--include", action="append", default=[], metavar="PATTERN", help="read these files only, as in .gitignore")
    add("--exclude", action="append", default=[], metavar="PATTERN", help="leave these files and folders out")
    add("--passages", help="tokens of a passage of a new index, or none for whole documents")
    add("--watch", action="store_true", help="follow changes until it is interrupted")
    help = "language of a new index's stemmer, or none; auto: the language of most texts"
    add("--language", default="auto", help=help)


def _run_index(args: argparse.Namespace) -> None:
    from palmette.index.folder import index_exists
    from palmette.index.languages import language_of_sources

    paths = list(args.documents)
    named = len(paths) > 1 and (not _exists(paths[0]) or (Path(paths[0]) / "model.safetensors").is_file())
    checkpoint = paths.pop(0) if named else None  # its folder, or a model on the Hub: no path of this machine
    patterns = {"include": args.include, "exclude": args.exclude}
    _check_sources(args, paths, patterns)
    options: dict[str, Any] = {"language": None if args.language == "none" else args.language}
    if args.language == "auto" and not index_exists(args.out):
        options["language"] = language_of_sources(paths, **patterns)
    if args.passages is not None:
        options["passages"] = _passages(args.passages)
    if args.encoder is not None:
        if checkpoint is not None:
            raise ConfigError(f"{checkpoint} has an encoder already: leave --encoder out")
        options["encoder"] = args.encoder
    loading = {"revision": args.revision, "device": args.device}
    model = None if checkpoint is None else palmette.load_model(checkpoint, **loading)
    with palmette.Index.build([], model, args.out, **options) as index:
        _check_language(args, index)
        if not args.watch:
            _sync_all(args, index, paths, patterns)
            return
        _watch(args, index, paths, patterns)
    encoder = {} if args.encoder is None else {"encoder": args.encoder}
    while True:  # another index has replaced it, with a model of its own
        with palmette.Index.open(args.out, **encoder) as index:
            _watch(args, index, paths, patterns)


def _check_sources(args: argparse.Namespace, paths: Sequence[str], patterns: Mapping[str, Any]) -> None:
    """Refuse sources that are missing or cannot be told apart, and patterns that match nothing of them."""
    from palmette.sources.walk import walk

    if args.source is not None and len(paths) > 1:
        raise ConfigError(f"--source names one source, but {len(paths)} are given: index them one by one")
    if len({Path(path).absolute().name for path in paths}) < len(paths):
        raise ConfigError(f"two of {', '.join(paths)} have the same name: index them one by one, each with a --source")
    if missing := [path for path in paths if not _exists(path)]:
        raise NotFoundError(f"there is no file or folder {missing[0]!r}")
    for path in paths if args.include else ():
        found = walk(path, **patterns)
        if found.skipped and not found.files:  # a mistyped pattern would empty the source
            raise InputError(f"--include {' '.join(args.include)} matches no file of {path}: write it as in .gitignore")


def _check_language(args: argparse.Namespace, index: palmette.Index) -> None:
    """Refuse another language than that of an index that there was."""
    own = index.backend.language or "none"
    if args.language not in ("auto", own):
        raise ConfigError(
            f"{args.out} stems its words as {own}, not {args.language}: leave --language out, or make a new index"
        )


def _watch(args: argparse.Namespace, index: Any, paths: Sequence[str], patterns: Mapping[str, Any]) -> None:
    """Synchronize all sources whenever a file changes, until another index lies at the path."""
    from palmette.service.indexes import stamp_of
    from palmette.sources.walk import file_stamps

    known, opened, away = None, stamp_of(args.out), ""
    while stamp_of(args.out) == opened:
        try:
            stamps = [file_stamps(path, **patterns) for path in paths]
            if stamps != known:
                _sync_all(args, index, paths, patterns)
            known, away = stamps, ""
        except NotFoundError as error:  # a folder that is made anew
            known = None
            if away != str(error):
                away = str(error)
                print(f"palmette: {error}: what was indexed stays until it is back", file=sys.stderr, flush=True)
        except LockedError as error:  # another process writes: it ends some time
            print(f"palmette: {error}", file=sys.stderr, flush=True)
        except StoreError:
            if stamp_of(args.out) == opened:
                raise
        time.sleep(WATCH_SECONDS)


def _sync_all(args: argparse.Namespace, index: Any, paths: Sequence[str], patterns: Mapping[str, Any]) -> None:
    """Synchronize all sources, and print the reports."""
    from palmette.encoder.remote import usage_of

    options = {"progress": args.progress, **patterns}
    reports = [index.sync(path, args.source, **options) for path in paths]
    stats = index.stats()
    if args.json:
        facts = {"index": str(args.out), "documents": stats.documents, "passages": stats.passages}
        for name in ("added", "changed", "removed"):
            facts[name] = sum(len(getattr(report, name)) for report in reports)
        for name in ("unchanged", "encoded"):
            facts[name] = sum(getattr(report, name) for report in reports)
        print(
            json.dumps({**facts, "skipped": [list(entry) for report in reports for entry in report.skipped]}),
            flush=True,
        )
        return
    for report in reports:
        print(report)
        _print_skipped(report.skipped)
    print(f"{args.out}: {stats.documents:,} documents, {stats.passages:,} passages", flush=True)
    if (usage := usage_of(index.model.encoder)) is not None:
        print(f"{index.model.encoder.name}: {usage}", flush=True)
    if not args.watch:
        print(f'next: palmette search {shlex.quote(str(args.out))} "your question" --explain')


def _print_skipped(skipped: Sequence[tuple[str, str]]) -> None:
    """Print each reason once, with the first file that was skipped for it; files that could not be read come first."""
    paths_of: dict[str, list[str]] = {}
    for path, reason in skipped:
        paths_of.setdefault(reason, []).append(path)
    for reason, paths in list(paths_of.items())[:REASONS_PRINTED]:
        others = f" and {len(paths) - 1:,} more" if len(paths) > 1 else ""
        print(f"  skipped {paths[0]}{others}: {reason}")
    if unnamed := sum(map(len, list(paths_of.values())[REASONS_PRINTED:])):
        print(f"  skipped {unnamed:,} more for other reasons")
    if len(skipped) > min(len(paths_of), REASONS_PRINTED):
        print("  --json names them all")


def _exists(name: str) -> bool:
    """Return True if a file or folder exists; False also for a name too long for one."""
    return os.path.exists(name)  # noqa: PTH110


def _passages(text: str) -> Any:
    """Parse the size of passages in tokens; ``None`` for documents that are not cut."""
    if text == "none":
        return None
    try:
        return {"tokens": int(text)}
    except ValueError as error:
        raise ConfigError(f"--passages takes a number of tokens, or none; got {text!r}") from error


def _add_evaluate(command: argparse.ArgumentParser) -> None:
    add = describe(
        command,
        "CKPT DATA",
        "palmette evaluate ckpt squad/ --split test --baselines\n"
        "palmette evaluate ckpt squad/ --split dev --level 6 --json",
        *("checkpoint", "--revision", "--device", "--lexical", "--quiet", "--json"),
    )
    command.set_defaults(lexical=0.0)
    add("data", help="BEIR folder, or a JSONL of pairs")
    add("--split", default="test", help="split whose judgements count")
    add("--baselines", action="store_true", help="beside it: the same before training, the encoder, BM25")
    add("--card", action="store_true", help="write the table into the checkpoint's README.md")


def _run_evaluate(args: argparse.Namespace) -> None:
    model = palmette.load_model(args.checkpoint, revision=args.revision, device=args.device)
    options = {name: getattr(args, name) for name in ("split", "baselines", "progress")} | search_options(args)
    report = palmette.evaluate(model, palmette.load_data(args.data), **options)
    if args.card:
        card = Path(args.checkpoint) / "README.md"
        if not card.parent.is_dir():
            raise ConfigError(f"--card writes into a checkpoint folder; {args.checkpoint!r} is none: pull it")
        text = model.card(report)
        card.unlink(missing_ok=True)  # a link may lead into the Hub's cache, whose files must not change
        card.write_text(text, encoding="utf-8")
    print(json.dumps(report.to_dict(), indent=2) if args.json else report.table())


def _add_inspect(command: argparse.ArgumentParser) -> None:
    add = describe(
        command,
        "CKPT_OR_INDEX",
        "palmette inspect ckpt\npalmette inspect my-index --json\npalmette inspect me/ckpt --revision v1\n"
        "palmette inspect my-index --outline                            the tree of an index, node by node",
        *("--revision", "--json"),
    )
    add("what", help="checkpoint folder, Hub repository or index folder")
    add("--outline", action="store_true", help="show the nodes of a tree's index with their documents and words")


def _run_inspect(args: argparse.Namespace) -> None:
    from palmette.index import MODEL
    from palmette.store.engines import is_url

    if is_url(args.what) or (Path(args.what) / MODEL).is_dir():
        with palmette.Index.open(args.what, device="cpu") as index:
            facts: dict[str, Any] = {"index": dataclasses.asdict(index.stats())}
            model = index.model
            if args.outline:
                from palmette.methods.tree.explain import outline

                print(outline(index))
                return
    elif args.outline:
        raise ConfigError(f"--outline shows an index; {args.what} is none: see `palmette index`")
    else:
        facts = {}
        model = palmette.load_model(args.what, revision=args.revision, device="cpu")
    encoder = model.encoder
    facts["model"] = {
        "method": model.method,
        "fingerprint": model.fingerprint,
        "origin": model.origin,
        "revision": model.revision,
        "encoder": {"name": encoder.name, "revision": encoder.revision, "width": encoder.dimension},
        "options": model.config.to_dict(),
        "structure": model.describe(),
        "trained": model.record.to_dict(),
    }
    print(json.dumps(facts, indent=2) if args.json else "\n".join(_lines(facts)))


def _lines(facts: Mapping[str, Any], indent: int = 0) -> list[str]:
    """Format nested facts as indented text."""
    lines = []
    for name, value in facts.items():
        if isinstance(value, Mapping):
            lines += [" " * indent + f"{name}:", *_lines(value, indent + 2)] if value else []
        elif value is not None:
            lines.append(" " * indent + f"{name}: {value}")
    return lines


def _add_overview(command: argparse.ArgumentParser) -> None:
    add = describe(
        command,
        "INDEX",
        'palmette overview my-index --topics 8\npalmette overview my-index --filter \'{"lang": "en"}\'',
        *("index", "--filter", "--encoder", "--device", "--json"),
    )
    add("--topics", type=int, default=12, help="number of topics at most")


def _run_overview(args: argparse.Namespace) -> None:
    args.extra, args.lexical = (), None
    options = search_options(args) | {"topics": args.topics}
    with once(), palmette.Index.open(args.index, device=args.device, encoder=args.encoder) as index:
        overview = index.overview(**options)
    print(json.dumps(overview.to_dict(), ensure_ascii=False, indent=2) if args.json else overview)


def _add_pull(command: argparse.ArgumentParser) -> None:
    add = describe(command, "REPO", "palmette pull me/ckpt\npalmette pull me/ckpt --revision v1 --out ckpt")
    add("repo", help="Hub repository, such as me/ckpt")
    add("--revision", help="branch, tag or commit; pin a commit to be sure of the same weights")
    add("--out", type=Path, help="copy into this folder (default: keep it in the Hub's cache)")
    add("--cache-dir", type=Path, help="Hub cache to use")


def _run_pull(args: argparse.Namespace) -> None:
    from palmette.hub import pull

    print(pull(args.repo, args.out, revision=args.revision, cache_dir=args.cache_dir))


def _add_push(command: argparse.ArgumentParser) -> None:
    examples = "palmette push ckpt me/ckpt\npalmette push ckpt me/ckpt --private --tag v1"
    add = describe(command, "CKPT REPO", examples)
    add("checkpoint", type=Path, help="checkpoint folder")
    add("repo", help="Hub repository, such as me/ckpt; made when it is not there")
    add("--private", action="store_true", help="make the repository private")
    add("--branch", help="commit to this branch")
    add("--tag", help="tag the commit")
    add("--message", help="commit message")


def _run_push(args: argparse.Namespace) -> None:
    from palmette.hub import push_checkpoint

    options = {"branch": args.branch, "create_tag": args.tag, "commit_message": args.message}
    print(push_checkpoint(args.checkpoint, args.repo, private=args.private or None, **options))
