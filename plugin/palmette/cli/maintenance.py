"""The commands ``repair``, ``backup``, ``restore``, ``export-onnx`` and ``cache``."""

from __future__ import annotations

import argparse
import dataclasses
import json
from datetime import datetime
from pathlib import Path

import palmette
from palmette.cli.arguments import CHECKPOINT, describe
from palmette.errors import NotFoundError


def _add_repair(command: argparse.ArgumentParser) -> None:
    examples = "palmette repair my-index new-index\npalmette repair my-index new-index --model me/ckpt"
    add = describe(command, "INDEX NEW", examples, "index", "--device", "--quiet", "--json")
    add("out", type=Path, metavar="new", help="folder to make; INDEX is left as it is")
    add("--model", help=f"where the model inside is damaged: its {CHECKPOINT}")


def _run_repair(args: argparse.Namespace) -> None:
    model = None if args.model is None else palmette.load_model(args.model, device=args.device)
    report = palmette.Index.repair(args.index, args.out, model, progress=args.progress)
    if args.json:
        print(json.dumps({"index": str(args.out), **dataclasses.asdict(report)}, ensure_ascii=False))
        return
    print(f"{args.out}: {report.documents} documents saved, {report.encoded} of them encoded again")
    for sentence in report.damaged:
        print(f"damaged: {sentence}")
    print(f"{len(report.lost)} documents lost" + (": add these again" if report.lost else ""))
    for id in report.lost:
        print(f"lost: {id}")


def _add_backup(command: argparse.ArgumentParser) -> None:
    add = describe(command, "INDEX COPY", "palmette backup my-index backups/monday", "index")
    add("copy", type=Path, help="folder to make")


def _run_backup(args: argparse.Namespace) -> None:
    with palmette.Index.open(args.index, device="cpu") as index:
        index.backup(args.copy)
        print(f"{args.copy}: a copy of {args.index}; `palmette restore` brings it back")


def _add_restore(command: argparse.ArgumentParser) -> None:
    add = describe(command, "COPY INDEX", "palmette restore backups/monday my-index")
    add("copy", type=Path, help="folder that `palmette backup` made")
    add("index", type=Path, help="folder to make: move a damaged index out of the way first")


def _run_restore(args: argparse.Namespace) -> None:
    with palmette.Index.restore(args.copy, args.index) as index:
        print(f"{args.index}: {len(index)} documents restored from {args.copy}")


def _add_cache(command: argparse.ArgumentParser) -> None:
    examples = "palmette cache\npalmette cache --clear sentence-transformers/all-MiniLM-L6-v2"
    add = describe(command, "", examples, "--json")
    about = "delete all encodings, or those of one encoder"
    add("--clear", nargs="?", const="", metavar="ENCODER", help=about)


def _run_cache(args: argparse.Namespace) -> None:
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


def _add_export_onnx(command: argparse.ArgumentParser) -> None:
    add = describe(
        command,
        "ENCODER FOLDER",
        "palmette export-onnx sentence-transformers/all-MiniLM-L6-v2 minilm --int8\n"
        'palmette search my-index "how do I copy a folder?" --encoder onnx:minilm',
    )
    add("encoder", help="a sentence-transformers model, by its name or folder")
    add("folder", help="where to write it; a new folder")
    add("--int8", action="store_true", help="8-bit weights: a quarter of the size, twice as fast, similar vectors")


def _run_export_onnx(args: argparse.Namespace) -> None:
    from palmette.encoder.onnx.export import export_onnx

    exported = export_onnx(args.encoder, args.folder, int8=args.int8)
    print(
        f"{exported.path}: {exported.bytes / 1e6:.0f} MB of {exported.precision}, cosine with {args.encoder} at least "
        f"{exported.lowest_cosine:.4f}\nuse it as encoder onnx:{args.folder}"
    )
