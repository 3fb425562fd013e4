"""Checkpoints to and from the Hugging Face Hub, and the client's errors as palmette's."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palmette.config import check_path
from palmette.errors import CheckpointError, ConfigError, HubError, NotFoundError, PalmetteError
from palmette.hub.card import REPO_PLACEHOLDER
from palmette.hub.checkpoint import (
    LAYOUT,
    Checkpoint,
    dump_manifest,
    flaws,
    foreign,
    open_folder,
    read_checkpoint,
    read_manifest,
    write_folder,
)

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_NAMES = (
    "Check the name (a folder's, or 'owner/name') and the revision; for a private or gated repository, or to write,"
    " pass token=…, set HF_TOKEN, or run: hf auth login"
)
"""What to do where the Hub has answered, or the name is none."""
_NETWORK = "Check the network, HF_ENDPOINT, HF_HUB_OFFLINE and local_files_only, and the cache's disk"
"""What to do about other errors of the Hub's client."""


def open_checkpoint(
    repo_or_dir: str | Path,
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | Path | None = None,
    local_files_only: bool = False,
) -> Checkpoint:
    """Open a checkpoint from a folder, or from the Hub or its cache, and verify every file.

    Only the files that the manifest names are fetched, and the manifest first, so that a foreign repository
    costs one small file. A full commit id that is in the cache costs no request. Options as in
    :meth:`Checkpointed.from_pretrained`.
    """
    folder = check_path(repo_or_dir)
    if folder.is_dir():
        if revision is not None:
            raise ConfigError(
                f"revision={revision!r} was given, but {str(folder)!r} is a folder here and has no revisions:"
                " leave it out, or rename the folder to load the repository"
            )
        return open_folder(folder)
    if folder.exists():
        raise CheckpointError(f"{folder} is a file; name the folder that holds {LAYOUT.manifest}")
    if isinstance(repo_or_dir, Path) or re.match(r"[./~]|.*[\\]|.*/.*/|.*/$", repo_or_dir):
        raise NotFoundError(
            f"no folder {str(folder)!r} (looked from {Path.cwd()}); a repository's name reads 'owner/name'"
        )
    from huggingface_hub import is_offline_mode

    repository = Repository(repo_or_dir, revision, token, cache_dir, local_files_only or is_offline_mode())
    if revision is not None and re.fullmatch("[0-9a-f]{40}", revision) and not repository.offline:
        with suppress(CheckpointError, NotFoundError):  # a commit that is cached whole needs no request
            return _load(replace(repository, offline=True))
    return _load(repository)


def push_checkpoint(
    path: str | Path,
    repo_id: str,
    *,
    branch: str | None = None,
    token: str | bool | None = None,
    private: bool | None = None,
    commit_message: str | None = None,
    create_tag: str | None = None,
) -> str:
    """Publish a folder's checkpoint in one commit, verified first; the commit's URL, which ends in its id.

    Only the files of its manifest, and the card, are sent. The repository (``private``, if so given) and the branch are
    made if they are not there; ``create_tag`` names this commit.
    """
    from huggingface_hub import CommitOperationAdd

    folder = check_path(path)
    if not folder.is_dir():
        raise NotFoundError(f"no folder {str(folder)!r} to push (in {Path.cwd()}); save the model there first")
    checkpoint = open_folder(folder)
    content = {name: checkpoint.file(name) for name in checkpoint.files}
    content[LAYOUT.manifest] = dump_manifest(checkpoint.files)
    api = hub_api(token)
    with hub_errors(repo_id, branch):
        if "/" not in repo_id or not api.repo_exists(repo_id):  # a token may write there, yet not create
            repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        if branch not in (None, "main"):
            api.create_branch(repo_id, branch=str(branch), exist_ok=True)
        if card := checkpoint.card:
            content[LAYOUT.card] = card.replace(REPO_PLACEHOLDER, repo_id).encode()
        commit = api.create_commit(
            repo_id,
            [CommitOperationAdd(name, data) for name, data in content.items()],
            commit_message=commit_message or "Upload palmette checkpoint",
            revision=branch,
        )
        if create_tag is not None:
            api.create_tag(repo_id, tag=create_tag, revision=commit.oid)
    return str(commit.commit_url)


def pull(repo_id: str, out_dir: str | Path | None = None, **options: Any) -> Path:
    """Fetch a checkpoint into ``out_dir`` (or only into the cache), verified, and return its folder.

    Options: ``revision``, ``token``, ``cache_dir`` and ``local_files_only`` of :func:`open_checkpoint`.
    """
    checkpoint = open_checkpoint(repo_id, **options)
    if out_dir is None:
        return checkpoint.path
    folder = check_path(out_dir)
    if not (folder.is_dir() and folder.samefile(checkpoint.path)):
        write_folder(folder, {name: checkpoint.file(name) for name in checkpoint.files}, checkpoint.card)
    return folder


@dataclass(frozen=True)
class Repository:
    """A repository at a revision, and how it may be reached."""

    repo_id: str
    revision: str | None = None
    token: str | bool | None = None
    cache_dir: str | Path | None = None
    offline: bool = False

    def fetch(self, names: Iterable[str], ignore: Iterable[str] = ()) -> Path:
        """Bring files into the cache, if the repository has them, and return the snapshot's folder."""
        with hub_errors(self.repo_id, self.revision):
            return Path(
                hub_api(self.token).snapshot_download(
                    self.repo_id,
                    revision=self.revision,
                    cache_dir=self.cache_dir,
                    allow_patterns=list(names),
                    ignore_patterns=list(ignore),
                    local_files_only=self.offline,
                )
            )


def hub_api(token: str | bool | None) -> HfApi:
    """Make a client of the Hub at ``HF_ENDPOINT`` as it is now (the client reads it at import)."""
    from huggingface_hub import HfApi

    return HfApi(endpoint=os.environ.get("HF_ENDPOINT", "").rstrip("/") or None, token=token)


def _load(repository: Repository) -> Checkpoint:
    """Fetch a checkpoint as far as needed, and verify it."""
    # 1. the manifest: a foreign repository ends here
    folder = repository.fetch([LAYOUT.manifest])
    repository = replace(repository, revision=folder.name)  # the commit: now all files are of one
    where, path = f"{repository.repo_id}@{folder.name}", folder / LAYOUT.manifest
    if not path.is_file():
        if repository.offline:
            raise NotFoundError(
                f"{where}: {path.name} is not in the cache. Load it once with the network, which replaces {path}"
            )
        with hub_errors(repository.repo_id, repository.revision):
            names = hub_api(repository.token).list_repo_files(repository.repo_id, revision=repository.revision)
        raise foreign(f"the repository {where}", names)
    files = read_manifest(path.read_bytes(), where)
    # 2. its files, whole or an error
    repository.fetch([*files, LAYOUT.card])
    for name, flaw in flaws(files, folder).items():
        raise CheckpointError(
            f"{where}: {name} {flaw}. Delete {(folder / name).resolve()} and load it with the network; if it is so "
            "in the repository too, pin another revision or ask its owner"
        )
    return read_checkpoint(folder, files, repository.repo_id, folder.name)


@contextmanager
def hub_errors(repo_id: str, revision: str | None = None) -> Iterator[None]:
    """Turn an error of the Hub's client into a PalmetteError: the repository, the client's words, and what to do."""
    try:
        yield
    except Exception as error:
        by_http = type(error).__module__.startswith("httpx")  # the client's HTTP library is httpx or httpx2
        if isinstance(error, PalmetteError) or not (by_http or isinstance(error, ValueError | RuntimeError | OSError)):
            raise
        from huggingface_hub import errors

        cause: BaseException = error
        uncached = isinstance(error, errors.LocalEntryNotFoundError)
        # The cause of a failed request or transfer says more than that there is nothing in the cache.
        while isinstance(cause.__cause__, Exception) and (
            isinstance(cause, errors.LocalEntryNotFoundError | ValueError | RuntimeError)
        ):
            cause = cause.__cause__
        names = errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.HFValidationError
        absent = isinstance(cause, (*names, errors.LocalEntryNotFoundError))
        absent = absent or (uncached and isinstance(cause, errors.OfflineModeIsEnabled))
        kind = NotFoundError if absent and not isinstance(cause, errors.GatedRepoError) else HubError
        target = f"{repo_id!r}" + (f" at revision {revision!r}" if revision else "")
        words = f"{type(cause).__name__}: {' '.join(str(cause).split()).rstrip('.')}"
        advice = _NAMES if isinstance(cause, errors.HfHubHTTPError | errors.HFValidationError) else _NETWORK
        raise kind(f"{target}{' is not in the cache' if uncached else ''}: {words}. {advice}") from error
