"""``palmette train METHOD DATA --out CKPT``: the options are the fields of the method's config."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from palmette.cli.arguments import describe, read_value
from palmette.config import Config, check_path, without_none

READER = "reader"
"""Subcommand that trains a reader."""
TAXONOMY = "taxonomy"
"""Method that needs a hierarchy."""
NODES = ".nodes.jsonl"
"""Suffix of a file of nodes."""


def _add_train(command: argparse.ArgumentParser) -> None:
    from palmette.methods import names
    from palmette.methods.base import DEFAULT_ENCODER
    from palmette.training.config import TrainingConfig

    add = describe(
        command,
        "METHOD DATA --out CKPT",
        "palmette train tree docs.jsonl --out ckpt\n"
        "palmette train tree --help                                     the options of a method\n"
        "palmette train tree squad/ --out ckpt --depth 10 --steps 2000 --encoder BAAI/bge-small-en-v1.5\n"
        "palmette train tree squad/ --out ckpt --resume\n"
        "palmette train taxonomy terms.jsonl --edges edges.tsv --out ckpt\n"
        "palmette train taxonomy paths.txt --out ckpt                   a path a line: fruit > apple > Cox\n"
        "palmette train reader squad/train.json --out reader            answers from what an index finds",
        *("--device", "--quiet", "--json"),
    )
    methods = [*names(), READER]
    add("method", choices=methods, help="what to train")
    words = command.get_default("words")
    add("data", help="BEIR folder, JSONL of pairs or of documents, or folder of .md and .txt files")
    add("--out", required=True, type=Path, help="folder for the checkpoint")
    add("--encoder", default=DEFAULT_ENCODER, help="sentence-transformers model: Hub name or folder")
    add("--state", type=Path, help="folder for log and state, to resume from (default: beside OUT)")
    add("--resume", action="store_true", help="go on where a killed run stopped")
    method = next((word for word in words if word in methods), None)
    defaults: Mapping[str, Any] = {}
    if method is not None:
        defaults = getattr(_class(method), "training_defaults", {})
        _add_method_options(command, method)
    elif {"-h", "--help"} & set(words):
        width = 2 + max(map(len, methods))
        lines = ""
        for name in methods:  # each with the first sentence about it
            about = (_class(name).__doc__ or "").partition("\n")[0].partition(". ")[0]
            lines += f"\n  {name.ljust(width)}{about.rstrip('.')}"
        command.description = f"{command.description}\n\nmethods:{lines}"
    add_config_options(command.add_argument_group("training options"), TrainingConfig, defaults)


def _add_method_options(command: argparse.ArgumentParser, method: str) -> None:
    """Add the options of a method's config, and those of its data."""
    config = _class(method).config_class
    if presets := list(config.presets):
        command.add_argument("--preset", choices=presets, help="named set of options; others override it")
    group = command.add_argument_group(f"{method} options")
    add_config_options(group, config, {})
    if method == TAXONOMY:
        about = "file of child and parent ids, a pair a line, with a tab between (metadata may name parents too)"
        group.add_argument("--edges", type=Path, help=about)


def _class(method: str) -> Any:
    """Return the class of a method's model, or the reader's."""
    from palmette.machine.devices import require_torch

    require_torch()
    from palmette.methods import model_class
    from palmette.reader import Reader

    return Reader if method == READER else model_class(method)


def add_config_options(group: Any, config: type[Config], defaults: Mapping[str, Any]) -> None:
    """Add a flag for each option that users set; only flags on the command line reach ``fit``."""
    for name in config.choices():
        field = config.model_fields[name]
        kinds = _flat(field.annotation)
        default = defaults.get(name, field.get_default(call_default_factory=True))
        about = config.help()[name].replace("%", "%%").replace("``", "")
        shown = "" if default is None or default == () else f" (default: {default})"
        argument: dict[str, Any] = {"type": partial(_read, kinds), "metavar": name.upper()}
        if all(isinstance(kind, str) for kind in kinds):
            argument = {"choices": kinds}
        elif any(get_origin(kind) is tuple for kind in kinds):
            argument["metavar"] = "A,B"
        flag = "--" + name.replace("_", "-")
        group.add_argument(flag, dest=name, default=argparse.SUPPRESS, help=about + shown, **argument)


def _flat(hint: Any) -> list[Any]:
    """Return the types and literal values that a field accepts, without ``None``."""
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    if hasattr(hint, "__metadata__"):
        return _flat(get_args(hint)[0])
    if get_args(hint) and get_origin(hint) is not tuple:
        return [kind for part in get_args(hint) for kind in _flat(part)]
    return [] if hint is type(None) else [hint]


def _read(kinds: Sequence[Any], text: str) -> Any:
    """Parse the value of a flag; the config checks it."""
    tuples = [kind for kind in kinds if get_origin(kind) is tuple]
    if tuples and get_args(tuples[0])[0] is str:
        return tuple(item.strip() for item in text.split(",") if item.strip())
    if tuples:
        value = read_value(text)
        return value if isinstance(value, list | str) else [value]
    return text if str in kinds else read_value(text)


def _run_train(args: argparse.Namespace) -> None:
    from palmette.hub import check_target
    from palmette.machine.devices import require_torch

    require_torch()
    from palmette.training.state import STATE

    args.out = check_path(args.out)
    check_target(args.out)
    state: Path = args.state or args.out.with_name(args.out.name + ".training")
    if not args.resume and (state / STATE).exists():
        _warn(f"starting anew over the state in {state}; --resume would go on with it")
    try:
        data, model = _train(args, state)
    except KeyboardInterrupt:
        if (state / STATE).exists():
            _warn(f"the state is in {state}; the same command with --resume goes on")
        raise
    path = model.save_pretrained(args.out)
    if hasattr(data, "descendants"):  # a hierarchy of paths: its nodes are the documents to index, beside it
        nodes = args.out.with_name(args.out.name + NODES)
        names = ("id", "text", "metadata")
        lines = (json.dumps({name: getattr(node, name) for name in names}) for node in data.documents())
        nodes.write_text("\n".join(lines) + "\n", "utf-8")
        args.data = str(nodes)
    print_report(args, model, path)


def _train(args: argparse.Namespace, state: Path) -> tuple[Any, Any]:
    """Read the data and train the model; returns both."""
    from palmette.data import load_data
    from palmette.reader import load_reading
    from palmette.training.config import TrainingConfig

    cls = _class(args.method)
    names = ["preset", *cls.config_class.choices(), *TrainingConfig.choices()]
    options = without_none({name: getattr(args, name, None) for name in names})
    read: Any = load_reading if args.method == READER else load_data
    hierarchy: dict[str, Any] = {}
    if args.method == TAXONOMY:
        edges: list[tuple[str, ...]] | None = None
        if args.edges is not None:
            lines = check_path(args.edges).read_text("utf-8").splitlines()
            edges = [tuple(line.split("\t")[:2]) for line in lines if line.strip()]
        read, hierarchy = _read_nodes, {"edges": edges}
    data = read(args.data, seed=options.get("seed", 0))
    loop = {name: getattr(args, name) for name in ("encoder", "device", "resume")}
    return data, cls.fit(data, **options, **hierarchy, **loop, output_dir=state, progress=args.progress)


def _warn(text: str) -> None:
    print(f"palmette: {text}", file=sys.stderr)


def _read_nodes(data: str, **options: Any) -> Any:
    """Read the paths of a text file as a hierarchy, and anything else as for other methods."""
    from palmette.data import load_data
    from palmette.methods.taxonomy import Hierarchy

    path = Path(data)
    if path.suffix != ".txt" or not path.is_file():
        return load_data(data, **options)
    return Hierarchy.from_paths(line for line in path.read_text("utf-8").splitlines() if line.strip())


def _kept(method: str, model: Any) -> str:
    """Return what of the training was kept, and what it gained on held-out questions."""
    record, space = model.record, model.record.space
    parts = []
    if space:
        on = f"on {space['questions']} held-out questions"
        gain = space.get("gain", 0.0) if not space["maps"] else space["ndcg@10"] - space["encoder"]
        parts = [f"a learned map gained {gain:+.3f} nDCG@10 {on}, and was {'kept' if space['maps'] else 'not kept'}"]
    elif record.pairs and method == "space":
        parts = ["no map was learned: too few pairs"]
    if record.steps and record.best_step == 0:
        parts.append("no step was better than the start, which was kept")
    learned = getattr(model, "calibrations", {}).get("")
    if learned is not None and learned.source != "shipped":
        parts.append(f"the weight of words, {learned.words:.2f}, and the probability were learned")
    elif method == "space" and parts and not space.get("maps"):
        parts.append("nothing changed")
    return "".join(f"\n{part}" for part in parts)


def print_report(args: argparse.Namespace, model: Any, path: Path) -> None:
    """Print the steps, time and metrics of a training, or all its facts as JSON."""
    record, shown = model.record, shlex.quote(str(path))
    if args.json:
        facts = {"checkpoint": str(path), "fingerprint": model.fingerprint, **record.to_dict()}
        print(json.dumps(facts, indent=2))
        return
    if args.method == READER:
        source = f"trained on {record.pairs} questions of {record.data}"
    elif record.pairs and (args.method != "space" or record.space.get("maps")):
        source = f"trained on {record.pairs} pairs of {record.data}"
    else:
        source = "kept the encoder's own vectors"
    pairs = Path(args.data).is_file() and record.labelled and not args.data.endswith(NODES)
    documents = "DOCUMENTS" if pairs else shlex.quote(args.data)
    following = f"index {shown} {documents} --out my-index"
    if args.method == READER:
        following = f'answer my-index "your question" --reader {shown}'
    reached = f", {record.metric} {record.metrics.get(record.metric, 0):.3f} on held-out queries"
    print(
        f"{args.method} {source} in {record.seconds:.0f} s"
        f"{reached if record.metric in record.metrics else ''}{_kept(args.method, model)}\n"
        f"checkpoint: {path}\nnext: palmette {following}"
    )
