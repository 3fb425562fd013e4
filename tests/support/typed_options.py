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
from pathlib import Path

from palmette.config import Config
from palmette.methods.fields.config import FieldsConfig, FieldsTraining
from palmette.methods.layers.config import LayersConfig, LayersTraining
from palmette.methods.paths.config import PathsConfig, PathsTraining
from palmette.methods.taxonomy.config import TaxonomyConfig, TaxonomyTraining
from palmette.methods.tree.config import TreeConfig, TreeTraining
from palmette.reader.config import ReaderConfig, ReaderTraining
from palmette.training import TrainingConfig

CONFIGS: dict[str, tuple[type[Config], ...]] = {
    "TreeModel.fit": (TreeConfig, TreeTraining),
    "FieldsModel.fit": (FieldsConfig, FieldsTraining),
    "LayersModel.fit": (LayersConfig, LayersTraining),
    "PathsModel.fit": (PathsConfig, PathsTraining),
    "TaxonomyModel.fit": (TaxonomyConfig, TaxonomyTraining),
    "Reader.fit": (ReaderConfig, ReaderTraining),
    "every training": (TrainingConfig,),
}
"""What takes the options → the configs that hold them."""
_ABC = ("Mapping", "Sequence")


def path_of(configs: tuple[type[Config], ...]) -> Path:
    """The file that they are written to: beside the first config."""
    return Path(str(sys.modules[configs[0].__module__].__file__)).with_name("options.py")


def written(taker: str, configs: tuple[type[Config], ...]) -> str:
    """The module's text."""
    module = sys.modules[configs[0].__module__]
    name = re.sub("Config$", "Options", configs[0].__name__)
    entries, types = [], set()
    for config in configs:
        words = config.help()
        for option in dataclasses.fields(config):
            if not option.metadata.get("filled_in"):
                kind = _spelt(str(option.metadata.get("given_as", option.type)), vars(module))
                types |= set(re.findall(r"[A-Z]\w+", kind))
                told = f"{words[option.name].rstrip('.')}. Default: {_shown(option)}."
                lines = textwrap.wrap(told, 104, break_long_words=False, break_on_hyphens=False)
                doc = lines[0] if len(lines) == 1 else "\n    ".join(lines) + "\n    "
                entries.append(f'    {option.name}: {kind}\n    """{doc}"""')
    imports = [
        f"from collections.abc import {', '.join(_ABC)}\n" if "Mapping" in types else "",
        f"from typing import {'Literal, ' if 'Literal' in types else ''}TypedDict",
    ]
    head = [
        f'"""Keyword options of {f"``{taker}``" if "." in taker else taker}, for editors; written from ``config.py`` '
        'by ``make options``."""',
        "from __future__ import annotations",
        "".join(imports),
        f'__all__ = ["{name}"]',
        f"class {name}(TypedDict, total=False):",
        f'    """What {f"``{taker}``" if "." in taker else taker} takes; see '
        f'{" and ".join(f":class:`{config.__name__}`" for config in configs)}."""',
    ]
    text = "\n\n".join(filter(None, (*head, *entries))) + "\n"
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(path_of(configs)), "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def _spelt(kind: str, names: dict[str, object]) -> str:
    """A type with the choices that a name stands for."""
    found = names.get(kind)
    return str(found).removeprefix("typing.") if str(found).startswith("typing.Literal") else kind


def _shown(option: dataclasses.Field[object]) -> str:
    if option.default is not dataclasses.MISSING:
        value = option.default
    else:
        assert option.default_factory is not dataclasses.MISSING
        value = option.default_factory()
    return f"``{value!r}``"


if __name__ == "__main__":
    for taken, held in CONFIGS.items():
        path_of(held).write_text(written(taken, held), encoding="utf-8")
