"""``palmette train METHOD DATA --out CKPT``."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import typing
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palmette.cli.parser import example
from palmette.config import Config

if TYPE_CHECKING:
    from palmette.model import Model
    from palmette.reader import Reader

READER = "reader"


def add(command: argparse.ArgumentParser, given: Sequence[str]) -> None:
    """Arguments; those of the method and the loop come from their configs."""
    command.usage = "palmette train METHOD DATA --out CKPT [options]"
    from palmette.model import DEFAULT_ENCODER
    from palmette.training import TrainingConfig

    command.add_argument("method", choices=_names(), help="what to train")
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
    method = next((word for word in given if word in _names()), None)
    if method is not None:
        _options(command.add_argument_group(f"{method} options"), _class(method).config_class)
    _options(command.add_argument_group("training options"), TrainingConfig)
    if method is None and {"-h", "--help"} & set(given):
        command.description = f"{command.description}\n\nmethods:\n{_methods()}"
    example(
        command,
        "palmette train tree docs.jsonl --out ckpt\n"
        "palmette train tree --help                                     the options of a method\n"
        "palmette train tree squad/ --out ckpt --depth 10 --steps 2000 --encoder BAAI/bge-small-en-v1.5\n"
        "palmette train tree squad/ --out ckpt --resume\n"
        "palmette train reader squad/train.json --out reader            answers from what an index finds",
    )


def _names() -> list[str]:
    """What can be trained."""
    from palmette.registry import names

    return [*names(), READER]


def _class(method: str) -> type[Model] | type[Reader]:
    """The class of what is trained."""
    from palmette.registry import model_class

    if method != READER:
        return model_class(method)
    from palmette.reader import Reader

    return Reader


def _methods() -> str:
    """What there is, in a line each: the first sentence of each class."""
    lines = ((name, (_class(name).__doc__ or "").partition("\n")[0]) for name in _names())
    return "\n".join(f"  {name.ljust(10)}{line.partition('. ')[0].rstrip('.')}" for name, line in lines)


def _listed(text: str, of: Callable[[str], Any]) -> tuple[Any, ...]:
    return tuple(of(item.strip()) for item in text.split(",") if item.strip())


def _options(group: Any, config: type[Config]) -> None:
    help_of = {name: words.replace("%", "%%").replace("``", "") for name, words in config.help().items()}
    for name in config.choices():
        hint = config.model_fields[name].annotation
        members = [arg for arg in typing.get_args(hint) if arg is not type(None)]
        if members and typing.get_origin(members[0]) is typing.Annotated:
            members = [typing.get_args(members[0])[0]]
        literal = typing.get_origin(hint) is typing.Literal
        kind: dict[str, Any] = {"choices": members} if literal else {"type": members[0] if members else hint}
        if lists := [known for known in (hint, *members) if typing.get_origin(known) is tuple]:
            kind = {"type": partial(_listed, of=typing.get_args(lists[0])[0]), "metavar": "A,B"}
        flag = "--" + name.replace("_", "-")
        group.add_argument(flag, default=argparse.SUPPRESS, help=help_of.get(name, ""), **kind)


def _chosen(args: argparse.Namespace, cls: Any) -> dict[str, Any]:
    from palmette.training import TrainingConfig

    names = [*cls.config_class.choices(), *TrainingConfig.choices()]
    return {name: getattr(args, name) for name in names if hasattr(args, name)}


def run(args: argparse.Namespace) -> None:
    """Train, save, say what came out; of several processes, the main one saves and speaks."""
    from palmette.hub import check_target
    from palmette.training import finish, main_process
    from palmette.training.state import STATE

    check_target(args.out)
    main = main_process()
    cls = _class(args.method)
    options = _chosen(args, cls)
    state: Path = args.state or args.out.with_name(args.out.name + ".training")
    if main and not args.resume and (state / STATE).exists():
        print(
            f"palmette: starting anew over the state in {state}; --resume would go on with it",
            file=sys.stderr,
        )
    try:
        model = cls.fit(
            _data(args),
            **options,
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


def _data(args: argparse.Namespace) -> Any:
    """What the method learns from."""
    if args.method == READER:
        from palmette.reader import load_reading

        return load_reading(args.data, seed=getattr(args, "seed", 0), titles=not args.no_titles)
    from palmette.data import load_data
    from palmette.registry import model_class

    how: dict[str, Any] = {} if model_class(args.method).needs_queries else {"kinds": ()}
    return load_data(args.data, seed=getattr(args, "seed", 0), titles=not args.no_titles, **how)


def _report(args: argparse.Namespace, model: Model | Reader, path: Path) -> None:
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
    shown = shlex.quote(str(path))
    if args.method == READER:
        print(
            f"reader trained on {record.pairs} questions of {record.data} in {record.seconds:.0f} s{reached}"
        )
        print(f'checkpoint: {path}\nnext: palmette answer my-index "your question" --reader {shown}')
        return
    pairs = "questions made of" if record.made else "pairs of"
    print(f"{args.method} trained on {record.pairs} {pairs} {record.data} in {record.seconds:.0f} s{reached}")
    documents = "DOCUMENTS" if Path(args.data).is_file() and record.labelled else shlex.quote(args.data)
    print(f"checkpoint: {path}\nnext: palmette index {shown} {documents} --out my-index")
