"""Checkpoints to and from the Hugging Face Hub."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from palmette.errors import CheckpointError, ConfigError, HubError, NotFoundError
from palmette.hub.card import PLACE
from palmette.hub.checkpoint import Checkpoint, open_folder, read_checkpoint
from palmette.hub.failures import Target, endpoint, hub_errors, is_offline
from palmette.hub.folder import write_folder
from palmette.hub.layout import LAYOUT, Manifest, foreign

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["open_checkpoint", "pull", "push_checkpoint"]

_COMMIT = re.compile(r"[0-9a-f]{40}")


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
    commit id that is in the cache costs no request.

    Args:
        repo_or_dir: A folder if there is one of that name, else a repository, ``owner/name``.
        revision: Branch, tag or commit (``main``).
        token: An access token; by default the one that is logged in. ``False`` sends none.
        cache_dir: The Hub client's cache, by default the shared one.
        local_files_only: Make no request.
    """
    folder = Path(repo_or_dir).expanduser()
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
    source = _Source(repo_or_dir, revision, token, cache_dir, local_files_only or is_offline())
    if revision is not None and _COMMIT.fullmatch(revision) and not source.offline:
        try:  # a commit never changes: what is cached and whole needs no request
            return replace(source, offline=True).load()
        except (CheckpointError, NotFoundError):
            pass
    return source.load()


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

    Args:
        path: The checkpoint's folder; only the files of its manifest, and the card, are sent.
        repo_id: ``owner/name``; made if it is not there.
        branch: The branch to commit to (``main``); made if it is not there.
        token: An access token that may write.
        private: Whether a repository that is made now is private.
        commit_message: The commit's first line.
        create_tag: A tag for this commit.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise NotFoundError(
            f"no folder {str(folder)!r} to push (looked from {Path.cwd()}); save the model there first"
        )
    checkpoint = open_folder(folder)
    content = {name: checkpoint.file(name) for name in checkpoint.files}
    content[LAYOUT.manifest] = Manifest(checkpoint.files).dump()
    api = HfApi(endpoint=endpoint(), token=token)
    with hub_errors(Target(repo_id, branch)):
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
            with hub_errors(Target(repo_id, create_tag)):
                api.create_tag(repo_id, tag=create_tag, revision=commit.oid)
        except (HubError, NotFoundError) as error:
            raise HubError(
                f"pushed as {commit.commit_url}, but without the tag {create_tag!r}: {error}"
            ) from error
    return str(commit.commit_url)


def pull(
    repo_id: str,
    out_dir: str | Path | None = None,
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | Path | None = None,
    local_files_only: bool = False,
) -> Path:
    """Fetch a checkpoint into ``out_dir`` (or only into the cache), verified, and return its folder."""
    checkpoint = open_checkpoint(
        repo_id, revision=revision, token=token, cache_dir=cache_dir, local_files_only=local_files_only
    )
    if out_dir is None:
        return checkpoint.path
    folder = Path(out_dir).expanduser()
    if not (folder.is_dir() and folder.samefile(checkpoint.path)):
        write_folder(folder, {name: checkpoint.file(name) for name in checkpoint.files}, checkpoint.card)
    return folder


@dataclass(frozen=True)
class _Source:
    """A repository at a revision, and how it may be reached."""

    repo_id: str
    revision: str | None
    token: str | bool | None
    cache_dir: str | Path | None
    offline: bool

    def load(self) -> Checkpoint:
        """The checkpoint, fetched as far as needed, and verified."""
        folder = self._fetch([LAYOUT.manifest])
        pinned = replace(self, revision=folder.name)  # the cache names it by commit: now all files are of one
        where = f"{self.repo_id}@{folder.name}"
        manifest = pinned._manifest(folder, where)
        pinned._fetch([*manifest.files, LAYOUT.card])
        if flaws := manifest.flaws(folder):
            flaws = pinned._repair(folder, manifest, flaws)
        for name, flaw in flaws.items():
            raise CheckpointError(f"{where}: {name} {flaw}. {self._advice(folder / name)}")
        return read_checkpoint(folder, manifest, self.repo_id, folder.name)

    def _manifest(self, folder: Path, where: str) -> Manifest:
        path = folder / LAYOUT.manifest
        if not path.is_file():
            if self.offline:
                raise NotFoundError(f"{where}: {LAYOUT.manifest} is not in the cache. {self._advice(path)}")
            raise foreign(f"the repository {where}", self._names())
        try:
            return Manifest.parse(path.read_bytes(), where)
        except CheckpointError:
            if self.offline:
                raise
            self._fetch_afresh([LAYOUT.manifest])
            return Manifest.parse(path.read_bytes(), where)

    def _repair(self, folder: Path, manifest: Manifest, flaws: dict[str, str]) -> dict[str, str]:
        """Fetch flawed files afresh, since the client trusts its cache; what is still wrong afterwards."""
        if self.offline:
            return flaws
        try:
            self._fetch_afresh(flaws)
        except (HubError, NotFoundError) as error:
            name, flaw = next(iter(flaws.items()))
            raise CheckpointError(
                f"{self.repo_id}@{self.revision}: the cached {name} {flaw},"
                f" and fetching it afresh failed: {error}"
            ) from error
        return manifest.flaws(folder)

    def _advice(self, path: Path) -> str:
        if self.offline:
            return f"Load it once with the network, which replaces {path}"
        return "It is so in the repository too, a fresh download shows: pin another revision or ask its owner"

    def _fetch(self, names: Iterable[str]) -> Path:
        """Have these files, if the repository has them, in the cache; the snapshot's folder."""
        from huggingface_hub import snapshot_download

        with hub_errors(Target(self.repo_id, self.revision, self.offline and not is_offline())):
            folder = snapshot_download(
                self.repo_id,
                revision=self.revision,
                token=self.token,
                cache_dir=self.cache_dir,
                local_files_only=self.offline,
                allow_patterns=list(names),
                endpoint=endpoint(),
            )
        return Path(folder)

    def _fetch_afresh(self, names: Iterable[str]) -> None:
        """Replace these files in the cache; one by one, as a snapshot would silently fall back on it."""
        from huggingface_hub import hf_hub_download

        with hub_errors(Target(self.repo_id, self.revision)):
            for name in names:
                hf_hub_download(
                    self.repo_id,
                    name,
                    revision=self.revision,
                    token=self.token,
                    cache_dir=self.cache_dir,
                    force_download=True,
                    endpoint=endpoint(),
                )

    def _names(self) -> list[str]:
        from huggingface_hub import HfApi

        with hub_errors(Target(self.repo_id, self.revision)):
            return HfApi(endpoint=endpoint(), token=self.token).list_repo_files(
                self.repo_id, revision=self.revision
            )
