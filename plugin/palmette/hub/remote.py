"""Checkpoints to and from the Hugging Face Hub, and the client's errors in palmette's words."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from palmette.config import check_path
from palmette.errors import CheckpointError, ConfigError, HubError, NotFoundError, PalmetteError
from palmette.hub.card import PLACE
from palmette.hub.checkpoint import Checkpoint, open_folder, read_checkpoint, write_folder
from palmette.hub.manifest import LAYOUT, dump_manifest, flaws, foreign, read_manifest


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
    costs one small file. A cached file that turns out altered is fetched once more before giving up. A full
    commit id that is in the cache costs no request. Options as in :meth:`Checkpointed.from_pretrained`.
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
    repository = Repository(repo_or_dir, revision, token, cache_dir, local_files_only or is_offline())
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
    from huggingface_hub import CommitOperationAdd, HfApi

    folder = check_path(path)
    if not folder.is_dir():
        raise NotFoundError(f"no folder {str(folder)!r} to push (in {Path.cwd()}); save the model there first")
    checkpoint = open_folder(folder)
    content = {name: checkpoint.file(name) for name in checkpoint.files}
    content[LAYOUT.manifest] = dump_manifest(checkpoint.files)
    api = HfApi(endpoint=endpoint(), token=token)
    with hub_errors(repo_id, branch):
        if "/" not in repo_id or not api.repo_exists(repo_id):  # a token may write there, yet not create
            repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        if branch not in (None, "main"):
            api.create_branch(repo_id, branch=str(branch), exist_ok=True)
        if card := checkpoint.card:
            content[LAYOUT.card] = card.replace(PLACE, repo_id).encode()
        commit = api.create_commit(
            repo_id,
            [CommitOperationAdd(name, data) for name, data in content.items()],
            commit_message=commit_message or "Upload palmette checkpoint",
            revision=branch,
        )
    if create_tag is not None:
        try:
            with hub_errors(repo_id, create_tag):
                api.create_tag(repo_id, tag=create_tag, revision=commit.oid)
        except (HubError, NotFoundError) as error:
            untagged = f"pushed as {commit.commit_url}, but without the tag {create_tag!r}: {error}"
            raise HubError(untagged) from error
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

    def fetch(self, names: Iterable[str], ignore: Iterable[str] = (), *, afresh: bool = False) -> Path:
        """Bring files into the cache, if the repository has them, and return the snapshot's folder.

        ``afresh`` replaces each of these files, since a snapshot trusts what is cached.
        """
        from huggingface_hub import hf_hub_download, snapshot_download

        options: dict[str, Any] = {"revision": self.revision, "token": self.token, "cache_dir": self.cache_dir}
        options["endpoint"] = endpoint()
        with hub_errors(self.repo_id, self.revision, self.offline and not is_offline()):
            if afresh:
                for name in names:
                    path = hf_hub_download(self.repo_id, name, force_download=True, **options)
                return Path(path).parent
            options |= {"allow_patterns": list(names), "ignore_patterns": list(ignore)}
            return Path(snapshot_download(self.repo_id, local_files_only=self.offline, **options))


def _load(repository: Repository) -> Checkpoint:
    """Fetch a checkpoint as far as needed, and verify it."""
    from huggingface_hub import HfApi

    folder = repository.fetch([LAYOUT.manifest])
    repository = replace(repository, revision=folder.name)  # the commit: now all files are of one
    offline, where, path = repository.offline, f"{repository.repo_id}@{folder.name}", folder / LAYOUT.manifest
    if not path.is_file():
        if offline:
            raise NotFoundError(
                f"{where}: {path.name} is not in the cache. Load it once with the network, which replaces {path}"
            )
        with hub_errors(repository.repo_id, repository.revision):
            api = HfApi(endpoint=endpoint(), token=repository.token)
            names = api.list_repo_files(repository.repo_id, revision=repository.revision)
        raise foreign(f"the repository {where}", names)
    try:
        files = read_manifest(path.read_bytes(), where)
    except CheckpointError:
        if offline:
            raise
        repository.fetch([LAYOUT.manifest], afresh=True)
        files = read_manifest(path.read_bytes(), where)
    repository.fetch([*files, LAYOUT.card])
    wrong = flaws(files, folder)
    if wrong and not offline:
        try:
            repository.fetch(wrong, afresh=True)
        except (HubError, NotFoundError) as error:
            name, flaw = next(iter(wrong.items()))
            stale = f"{where}: the cached {name} {flaw}, and fetching it afresh failed: {error}"
            raise CheckpointError(stale) from error
        wrong = flaws(files, folder)
    for name, flaw in wrong.items():
        advice = "It is so in the repository too: pin another revision or ask its owner"
        if offline:
            advice = f"Load it once with the network, which replaces {folder / name}"
        raise CheckpointError(f"{where}: {name} {flaw}. {advice}")
    return read_checkpoint(folder, files, repository.repo_id, folder.name)


# -- the client's errors --------------------------------------------------------------------------------


def endpoint() -> str:
    """Address of the Hub: ``HF_ENDPOINT`` as it is now (the client reads it at import)."""
    from huggingface_hub import constants

    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or str(constants.ENDPOINT)


def is_offline() -> bool:
    """Tell whether the client may make no request (``HF_HUB_OFFLINE``)."""
    from huggingface_hub import is_offline_mode

    return is_offline_mode()


@contextmanager
def hub_errors(repo_id: str, revision: str | None = None, local_files_only: bool = False) -> Iterator[None]:
    """Turn errors of the Hub's client into a PalmetteError that names the repository and the fix."""
    try:
        yield
    except Exception as error:
        known = isinstance(error, ValueError | RuntimeError | OSError) or _by_http(error)
        if isinstance(error, PalmetteError) or not known:
            raise
        raise _translate(error, repo_id, revision, local_files_only) from error


def _by_http(error: BaseException) -> bool:
    """Recognise errors of the client's HTTP library, which is httpx or httpx2."""
    return type(error).__module__.startswith("httpx")


def _translate(error: BaseException, repo_id: str, revision: str | None, local: bool) -> PalmetteError:
    """Turn an error of the Hub's client into one of palmette's, which names the cause and the fix."""
    from huggingface_hub import errors

    target = f"{repo_id!r}" + (f" at revision {revision!r}" if revision else "")
    if isinstance(error, errors.HFValidationError):
        return NotFoundError(
            f"{repo_id!r} is neither a folder here ({Path.cwd()}) nor a repository's name, which reads"
            f" 'owner/name': {error}"
        )
    uncached = isinstance(error, errors.LocalEntryNotFoundError)
    if uncached and (local or is_offline()):
        switch = "local_files_only=True" if local else "HF_HUB_OFFLINE"
        return NotFoundError(
            f"{target} is not, or not wholly, in the cache, and {switch} forbids fetching it. Load it once"
            f" without {switch}, or name the cache_dir it was loaded to"
        )
    while isinstance(error.__cause__, Exception) and (
        isinstance(error, errors.LocalEntryNotFoundError | ValueError | RuntimeError)
    ):
        error = error.__cause__  # the client's own words for a failed request or transfer
    if isinstance(error, errors.HfHubHTTPError) and not isinstance(error, errors.LocalEntryNotFoundError):
        return _refused(error, repo_id, revision, target)
    if isinstance(error, errors.OfflineModeIsEnabled) and not uncached:
        return HubError(f"{target}: the Hub is switched off by HF_HUB_OFFLINE; unset it to go on")
    if uncached or _by_http(error):
        return HubError(
            f"{target}: no connection to {endpoint()} ({type(error).__name__}: {error})"
            f"{', and it is not in the cache' if uncached else ''}. Check the network and HF_ENDPOINT"
        )
    return HubError(
        f"{target}: {str(error).strip().rstrip('.')}. Check the token, the disk's space and who may write to the cache"
    )


def _refused(error: Exception, repo_id: str, revision: str | None, target: str) -> PalmetteError:
    """Translate an answer other than success."""
    from huggingface_hub import errors

    hub, page = endpoint(), f"{endpoint()}/{repo_id}"
    login = "pass token=…, set HF_TOKEN, or run: hf auth login"
    if isinstance(error, errors.GatedRepoError):
        return HubError(f"{target} is gated: ask for access at {page}, then {login}")
    if isinstance(error, errors.RevisionNotFoundError):
        return NotFoundError(
            f"{repo_id!r} has no revision {revision or 'main'!r}; its branches and tags are at {page}/tree/main"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return NotFoundError(
            f"no repository {repo_id!r} at {hub}, and no such folder in {Path.cwd()}."
            f" Check the name; if it is private, {login}"
        )
    status = getattr(getattr(error, "response", None), "status_code", None)
    answer = f"{status}: {str(getattr(error, 'server_message', None) or error).strip().rstrip('.')}"
    if status == 401:
        return HubError(f"{target}: {hub} does not accept the token ({answer}). For a valid one, {login}")
    if status == 403:
        return HubError(f"{target}: the token may not do this ({answer}). With one that may (write), {login}")
    return HubError(f"{target}: {hub} answered {answer}. Try again later, or see {page}")
