"""Files from strangers: whatever a checkpoint or an index folder holds, it loads, or raises a PalmetteError."""

from __future__ import annotations

import copy
import hashlib
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from palmette import Index, load_model
from palmette.hub.checkpoint import LAYOUT, Entry, dump_manifest
from palmette.reader import Reader
from support import readers, tiny
from support.odd import attempt

ODD = [
    None,
    True,
    -1,
    0,
    10**12,
    2**63,
    1e308,
    float("nan"),
    "",
    "x" * 200,
    "\ud800",
    [],
    {},
    [[]],
    {"a": {}},
    [10**12] * 3,
    ["x"],
]


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to everything inside a JSON value."""
    inner = (
        value.items() if isinstance(value, dict) else enumerate(value[:4]) if isinstance(value, list) else ()
    )
    return [at, *(place for key, one in inner for place in places(one, (*at, key)))]


def changed(value: Any, at: tuple[Any, ...], odd: Any) -> Any:
    """The value with something odd, or nothing, at one place."""
    if not at:
        return odd
    made = copy.deepcopy(value)
    held = made
    for key in at[:-1]:
        held = held[key]
    if odd is KeyError:
        del held[at[-1]]
    else:
        held[at[-1]] = odd
    return made


def rewrite(folder: Path, name: str, data: bytes) -> None:
    """Put other content under a name, with the sums that belong to it."""
    (folder / name).write_bytes(data)
    listed = json.loads((folder / LAYOUT.manifest).read_bytes())["files"]
    entries = {name: Entry.of((folder / name).read_bytes()) for name in {*listed, name}}
    (folder / LAYOUT.manifest).write_bytes(dump_manifest(entries))
