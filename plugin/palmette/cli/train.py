"""``palmette train METHOD DATA --out CKPT``."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import shlex
import sys
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palmette.cli.parser import example
from palmette.config import Config

if TYPE_CHECKING:
    from palmette.model import Model


def add(command: argparse.ArgumentParser, given: Sequence[str]) -> None:
    """Arguments; those of the method and the loop come from their configs."""
    command.usage = "palmette train METHOD DATA --out CKPT [options]"
    from palmette.model import DEFAULT_ENCODER
    from palmette.registry import model_class, names
    from palmette.training import TrainingConfig

    command.add_argument("method", choices=names(), help="what to train")
    command.add_argument(
        "data", help="a BEIR folder, a JSONL of pairs or of documents, or a folder of .md and .txt files"
    )
    command.add_argument("--out", required=True, type=Path, help="folder for the checkpoint")
    command.add_argument(
        "--encoder", default=DEFAULT_ENCODER, help="sentence-transformers model: Hub name or folder"
    )
    command.add_argument("--device", help="cpu, cuda, mps; the best there is by default")
    command.add_argument(
        "--state", type=Path, help="folder for log and state, to resume from (default: beside OUT)"
    )
    command.add_argument("--resume", action="store_true", help="go on where a killed run stopped")
    command.add_argument("--no-titles", action="store_true", help="leave titles out of the texts")
    command.add_argument("--quiet", action="store_true", help="no progress bars")
    command.add_argument("--json", action="store_true", help="print the result as JSON")
    method = next((word for word in given if word in names()), None)
    loop = TrainingConfig
    if method is not None:
        loop = model_class(method).training_class
        _options(command.add_argument_group(f"{method} options"), model_class(method).config_class)
    _options(command.add_argument_group("training options"), loop)
    if method is None and {"-h", "--help"} & set(given):
        command.description = f"{command.description}\n\nmethods:\n{_methods()}"
    example(
        command,
        "palmette train tree docs.jsonl --out ckpt\n"
        "palmette train tree --help                                     the options of a method\n"
        "palmette train tree squad/ --out ckpt --depth 10 --steps 2000 --encoder BAAI/bge-small-en-v1.5\n"
        "palmette train tree squad/ --out ckpt --resume",
    )


def _methods() -> str:
    """What there is, in a line each: the first sentence of each class."""
    from palmette.registry import model_class, names

    lines = ((name, (model_class(name).__doc__ or "").partition("\n")[0]) for name in names())
    return "\n".join(f"  {name.ljust(10)}{line.partition('. ')[0].rstrip('.')}" for name, line in lines)


def _help(config: type[Config]) -> dict[str, str]:
    """Field descriptions, from the Attributes of the class's docstring."""
    parts = [
        re.split(r"\n\s*Attributes:\n", base.__doc__ or "", maxsplit=1)[-1]
        for base in reversed(config.__mro__)
    ]
    found = re.findall(r"^ {8}(\w+): (.*(?:\n {12}.*)*)", "\n".join(parts), flags=re.MULTILINE)
    return {name: re.sub(r"\s+", " ", words).replace("%", "%%").replace("``", "") for name, words in found}


def _listed(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",") if item.strip())


def _options(group: Any, config: type[Config]) -> None:
    hints, help_of = typing.get_type_hints(config), _help(config)
    for item in dataclasses.fields(config):
        if item.name not in config.choices():
            continue
        hint = hints[item.name]
        members = [arg for arg in typing.get_args(hint) if arg is not type(None)]
        literal = typing.get_origin(hint) is typing.Literal
        kind = {"choices": members} if literal else {"type": members[0] if members else hint}
        if typing.get_origin(hint) is tuple:
            kind = {"type": _listed, "metavar": "A,B"}
        flag = "--" + item.name.replace("_", "-")
        group.add_argument(flag, default=item.default, help=help_of.get(item.name, ""), **kind)


def _chosen(args: argparse.Namespace, config: type[Config]) -> dict[str, Any]:
    return {name: getattr(args, name) for name in config.choices()}


def run(args: argparse.Namespace) -> None:
    """Train, save, say what came out; of several processes, the main one saves and speaks."""
    from palmette.data import load_data
    from palmette.registry import model_class
    from palmette.training import finish, main_process
    from palmette.training.state import STATE

    main = main_process()
    cls = model_class(args.method)
    options = _chosen(args, cls.config_class) | _chosen(args, cls.training_class)
    state: Path = args.state or args.out.with_name(args.out.name + ".training")
    if main and not args.resume and (state / STATE).exists():
        print(
            f"palmette: starting anew over the state in {state}; --resume would go on with it",
            file=sys.stderr,
        )
    try:
        model = cls._fit(
            load_data(args.data, seed=args.seed, titles=not args.no_titles),
            options,
            encoder=args.encoder,
            device=args.device,
            output_dir=state,
            resume=args.resume,
            progress=None if main and not args.quiet else False,
        )
    except KeyboardInterrupt:
        if main and (state / STATE).exists():
            print(
                f"palmette: the state is in {state}; the same command with --resume goes on", file=sys.stderr
            )
        raise
    if main:
        _report(args, model, model.save_pretrained(args.out))
    finish()


def _report(args: argparse.Namespace, model: Model, path: Path) -> None:
    record = model.record
    if args.json:
        print(
            json.dumps(
                {"checkpoint": str(path), "fingerprint": model.fingerprint, **record.to_dict()}, indent=2
            )
        )
        return
    reached = (
        f", {record.metric} {record.metrics[record.metric]:.3f} on held-out queries" if record.metrics else ""
    )
    print(
        f"{args.method} trained on {record.pairs} pairs of {record.data} in {record.seconds:.0f} s{reached}"
    )
    documents = "DOCUMENTS" if Path(args.data).is_file() and record.labelled else shlex.quote(args.data)
    print(f"checkpoint: {path}\nnext: palmette index {shlex.quote(str(path))} {documents} --out my-index")
