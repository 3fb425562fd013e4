"""Writes the keyword options of every ``fit`` as editors want them: typed, each with its words and its default.

    make options

A config class holds an option once, with its type, default and words; an editor that completes ``fit(…)`` sees none
of that behind ``**options``, but does see a typed dictionary. So one is written from each config.
"""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path

from palmette.config import Config
from palmette.methods.fields.config import FieldsConfig, FieldsTraining
from palmette.methods.layers.config import LayersConfig, LayersTraining
from palmette.methods.paths.config import PathsConfig, PathsTraining
from palmette.methods.taxonomy.config import TaxonomyConfig, TaxonomyTraining
from palmette.methods.tree.config import TreeConfig, TreeTraining
from palmette.reader.config import ReaderConfig, ReaderTraining
from palmette.training import TrainingConfig

Option = dataclasses.Field[object]

CONFIGS: dict[str, tuple[type[Config], type[TrainingConfig]]] = {
    "TreeModel": (TreeConfig, TreeTraining),
    "FieldsModel": (FieldsConfig, FieldsTraining),
    "LayersModel": (LayersConfig, LayersTraining),
    "PathsModel": (PathsConfig, PathsTraining),
    "TaxonomyModel": (TaxonomyConfig, TaxonomyTraining),
    "Reader": (ReaderConfig, ReaderTraining),
}
"""What is trained → its own options, and its training's."""
TRAININGS = {training for _, training in CONFIGS.values()}
ABC = ("Mapping", "Sequence")


def files() -> dict[Path, str]:
    """What is written, and where: beside each config."""
    shared = [option for option in _options(TrainingConfig) if _alike(option)]
    rest = [option for option in _options(TrainingConfig) if not _alike(option)]
    common = _entry("CommonOptions", "TypedDict", "What every ``fit`` takes, with one default.", shared)
    training = _entry("TrainingOptions", "CommonOptions", "How to train; see :class:`TrainingConfig`.", rest)
    made = {_beside(TrainingConfig): _module("every training", [common, training], "")}
    for owner, (config, how) in CONFIGS.items():
        own = [*_options(config), *(option for option in _options(how) if not _alike(option))]
        told = f"What ``{owner}.fit`` takes; see :class:`{config.__name__}` and :class:`{how.__name__}`."
        entry = _entry(config.__name__.replace("Config", "Options"), "CommonOptions", told, own)
        above = "from palmette.training import CommonOptions"
        made[_beside(config)] = _module(f"``{owner}.fit``", [entry], above)
    return made


def _options(config: type[Config]) -> list[tuple[type[Config], Option]]:
    return [(config, option) for option in dataclasses.fields(config) if option.name in config.choices()]


def _alike(option: tuple[type[Config], Option]) -> bool:
    """Whether an option of training has one default everywhere."""
    defaults = [{o.name: o.default for o in dataclasses.fields(training)} for training in TRAININGS]
    return len({known[option[1].name] for known in defaults}) == 1


def _beside(config: type[Config]) -> Path:
    return Path(str(sys.modules[config.__module__].__file__)).with_name("options.py")


def _entry(name: str, base: str, told: str, options: Iterable[tuple[type[Config], Option]]) -> str:
    """A typed dictionary."""
    lines = [f'class {name}({base}, total=False):\n    """{told}"""']
    for config, option in options:
        words = f"{config.help()[option.name].rstrip('.')}. Default: ``{_default(option)!r}``."
        first, *more = textwrap.wrap(words, 104, break_long_words=False, break_on_hyphens=False)
        doc = "\n    ".join([first, *more, ""]) if more else first
        lines.append(f'    {option.name}: {_kind(config, option)}\n    """{doc}"""')
    return "\n\n".join(lines)


def _default(option: Option) -> object:
    if option.default is not dataclasses.MISSING:
        return option.default
    assert option.default_factory is not dataclasses.MISSING
    return option.default_factory()


def _kind(config: type[Config], option: Option) -> str:
    """Its type, with the choices that a name stands for."""
    kind = str(option.metadata.get("given_as", option.type))
    meant = str(vars(sys.modules[config.__module__]).get(kind))
    return meant.removeprefix("typing.") if meant.startswith("typing.Literal") else kind


def _module(what: str, entries: list[str], above: str) -> str:
    """A file, formatted."""
    body = "\n\n\n".join(entries)
    typing = [name for name in ("Literal", "TypedDict") if re.search(rf"\b{name}\b", body)]
    imports = [
        f"from collections.abc import {', '.join(ABC)}" * ("Mapping[" in body),
        f"from typing import {', '.join(typing)}" * bool(typing),
        above and f"\n{above}",
    ]
    names = ", ".join(f'"{name}"' for name in re.findall(r"^class (\w+)", body, re.MULTILINE))
    told = f"Keyword options of {what}, for editors; written from ``config.py`` by ``make options``."
    head = [f'"""{told}"""', "from __future__ import annotations", "\n".join(filter(None, imports))]
    text = "\n\n".join([*head, f"__all__ = [{names}]", f"\n{body}\n"])
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", "plugin/palmette/options.py", "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
