"""The commands ``index``, ``evaluate``, ``inspect``, ``pull`` and ``push``."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import palmette
from palmette.cli.arguments import CHECKPOINT, describe, search_options
from palmette.errors import ConfigError


def _add_index(command: argparse.ArgumentParser) -> None:
    add = describe(
        command,
        "[CKPT] DOCUMENTS --out DIR",
        "palmette index notes/ --out my-index              no model: the default encoder, nothing to train\n"
        "palmette index ckpt docs.jsonl --out my-index\n"
        "palmette index me/ckpt notes/ --out my-index --revision v1\n\n"
        "Run it again with changed documents: only those are encoded and replaced.",
        *("--revision", "--device", "--no-titles", "--quiet", "--json"),
    )
    add("checkpoint", nargs="?", help=f"{CHECKPOINT}; none for the default encoder, or an index's own model")
    add("documents", help="JSONL or table of documents, BEIR folder, or folder of .md and .txt files")
    add("--out", required=True, help="index to make, or to update: a folder, or qdrant://host:6333/name")
    add("--prune", action="store_true", help="delete what is in the index and not in DOCUMENTS")
    add("--batch-size", type=int, default=256, help="documents encoded at a time")
    add("--language", default="english", help="language of a new index's stemmer, or none")


def _run_index(args: argparse.Namespace) -> None:
    from palmette.data import iter_documents

    language = None if args.language == "none" else args.language
    documents = list(iter_documents(args.documents, titles=args.titles))
    loading = {"revision": args.revision, "device": args.device}
    model = None if args.checkpoint is None else palmette.load_model(args.checkpoint, **loading)
    with palmette.Index.open_or_create(args.out, model, language=language) as index:
        ids = {document.key for document in documents}
        absent = [document.key for document in index.documents() if document.key not in ids]
        gone = absent if args.prune else ()
        changes = index.upsert(documents, delete=gone, batch_size=args.batch_size, progress=args.progress)
        total = len(index)
    counts = {name: len(getattr(changes, name)) for name in ("added", "updated", "unchanged", "deleted")}
    if args.json:
        print(json.dumps({"index": str(args.out), "documents": total, **counts}))
        return
    print(f"{args.out}: {total} documents ({', '.join(f'{count} {name}' for name, count in counts.items())})")
    if absent and not args.prune:
        print(f"{len(absent)} more were there before and stay, such as {absent[0]!r}; --prune deletes them")
    print(f'next: palmette search {shlex.quote(str(args.out))} "your question" --explain')


def _add_evaluate(command: argparse.ArgumentParser) -> None:
    add = describe(
        command,
        "CKPT DATA",
        "palmette evaluate ckpt squad/ --split test --baselines\n"
        "palmette evaluate ckpt squad/ --split dev --level 6 --json\n"
        "palmette evaluate ckpt squad/ --reader my-reader --passages 10",
        *("checkpoint", "--revision", "--device", "--lexical", "--no-titles", "--quiet", "--json"),
    )
    command.set_defaults(lexical=0.0)
    add("data", help="BEIR folder, or a JSONL of pairs; for a reader, of questions")
    add("--split", default="test", help="split whose judgements count")
    add("--baselines", action="store_true", help="beside it: the same before training, the encoder, BM25")
    add("--reader", help=f"answer the questions too: a reader's {CHECKPOINT}")
    add("--passages", type=int, default=5, help="number of documents the reader is given")
    add("--card", action="store_true", help="write the table into the checkpoint's README.md")


def _run_evaluate(args: argparse.Namespace) -> None:
    from palmette.reader import Reader, load_reading

    model = palmette.load_model(args.checkpoint, revision=args.revision, device=args.device)
    reader = None if args.reader is None else Reader.from_pretrained(args.reader, device=args.device)
    load: Any = palmette.load_data if reader is None else load_reading
    names = ("split", "baselines", "passages", "progress")
    options = {name: getattr(args, name) for name in names} | search_options(args)
    report = palmette.evaluate(model, load(args.data, titles=args.titles), reader=reader, **options)
    if args.card:
        card = Path(args.checkpoint) / "README.md"
        if not card.parent.is_dir():
            raise ConfigError(f"--card writes into a checkpoint folder; {args.checkpoint!r} is none: pull it")
        text = model.card(report)
        card.unlink(missing_ok=True)  # never through a link, into the Hub's cache for instance
        card.write_text(text, encoding="utf-8")
    print(json.dumps(report.to_dict(), indent=2) if args.json else report.table())


def _add_inspect(command: argparse.ArgumentParser) -> None:
    add = describe(
        command,
        "CKPT_OR_INDEX",
        "palmette inspect ckpt\npalmette inspect my-index --json\npalmette inspect me/ckpt --revision v1\n"
        'palmette inspect my-index --html tree.html --query "how do I …?"',
        *("--revision", "--json"),
    )
    add("what", help="checkpoint folder, Hub repository or index folder")
    add("--html", type=Path, metavar="FILE", help="draw the tree of an index as one page")
    add("--query", action="append", default=[], metavar="TEXT", help="light up its way on the page")


def _run_inspect(args: argparse.Namespace) -> None:
    from palmette.index import MODEL
    from palmette.methods.tree import TreeInspection
    from palmette.store.qdrant.client import is_url

    if is_url(args.what) or (Path(args.what) / MODEL).is_dir():
        with palmette.Index.open(args.what, device="cpu") as index:
            about = dataclasses.asdict(index.stats()) | index.survey()
            facts: dict[str, Any] = {"index": about, "model": _model_facts(index.model)}
            if args.html:
                drawn = TreeInspection.of(index, queries=args.query)
                facts["html"] = str(drawn.save_html(args.html))
                if not args.json:
                    print(f"{facts['html']}: {drawn.documents:,} documents on {len(drawn.leaves):,} leaves")
                    return
    elif args.html:
        raise ConfigError(f"--html draws an index; {args.what} is none: see `palmette index`")
    else:
        model = palmette.load_model(args.what, revision=args.revision, device="cpu")
        facts = {"model": _model_facts(model)}
    print(json.dumps(facts, indent=2) if args.json else "\n".join(_lines(facts)))


def _model_facts(model: Any) -> dict[str, Any]:
    encoder = model.encoder
    return {
        "method": model.method,
        "fingerprint": model.fingerprint,
        "origin": model.origin,
        "revision": model.revision,
        "encoder": {"name": encoder.name, "revision": encoder.revision, "width": encoder.dimension},
        "options": model.config.to_dict(),
        "structure": model.describe(),
        "trained": model.record.to_dict(),
    }


def _lines(facts: Mapping[str, Any], indent: int = 0) -> list[str]:
    """Nested facts as indented text."""
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
        "INDEX [QUESTION]",
        "palmette overview my-index --topics 8\n"
        'palmette overview my-index "how do I prune a cherry?"           the topics that answer it first\n'
        "palmette overview my-index --since 2025-06-01 --date modified   what changed, by topic",
        *("index", "--filter", "--device", "--json"),
    )
    add("query", nargs="?", metavar="QUESTION", help="a question that the topics are judged by")
    add("--topics", type=int, default=12, help="number of topics at most")
    add("--since", metavar="DATE", help="count documents that are dated so or later")
    add("--date", default="date", metavar="NAME", help="metadata that date a document")


def _run_overview(args: argparse.Namespace) -> None:
    args.extra, args.lexical = (), None
    options = search_options(args) | {name: getattr(args, name) for name in ("topics", "since", "date")}
    with palmette.Index.open(args.index, device=args.device) as index:
        overview = index.overview(args.query, **options)
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
