"""The Hub client's errors in palmette's words: the repository, the revision, and what to do."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from palmette.errors import HubError, NotFoundError, PalmetteError

__all__ = ["Target", "endpoint", "hub_errors", "is_offline"]


def endpoint() -> str | None:
    """``HF_ENDPOINT`` as it is now (the client reads it at import); ``None`` leaves it to the client."""
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or None


def is_offline() -> bool:
    """Whether the client was told to make no request (``HF_HUB_OFFLINE``)."""
    from huggingface_hub import is_offline_mode

    return is_offline_mode()


@dataclass(frozen=True)
class Target:
    """What was asked of the Hub, for the error texts."""

    repo_id: str
    revision: str | None = None
    local_files_only: bool = False

    def __str__(self) -> str:
        return f"{self.repo_id!r}" + (f" at revision {self.revision!r}" if self.revision else "")

    @property
    def hub(self) -> str:
        """The Hub's address."""
        from huggingface_hub import constants

        return endpoint() or constants.ENDPOINT


@contextmanager
def hub_errors(target: Target) -> Iterator[None]:
    """Turn whatever the client raises inside into a PalmetteError."""
    try:
        yield
    except (ValueError, RuntimeError, OSError, _http_error()) as error:
        if isinstance(error, PalmetteError):
            raise
        raise _translate(error, target) from error


def _http_error() -> type[Exception]:
    """The base error of the client's HTTP library: httpx2, re-exported, in version 2; httpx in version 1."""
    utils = importlib.import_module("huggingface_hub.utils")
    library = getattr(utils, "httpx", None) or importlib.import_module("httpx")
    return cast(type[Exception], library.HTTPError)


def _translate(error: BaseException, target: Target) -> PalmetteError:
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
    )

    cause = error.__cause__
    if isinstance(error, LocalEntryNotFoundError):
        if target.local_files_only or is_offline():
            return _not_cached(target)
        if isinstance(cause, HfHubHTTPError):  # the Hub did answer, and nothing was cached to fall back on
            return _refused(cause, target)
    elif isinstance(error, HfHubHTTPError):
        return _refused(error, target)
    elif isinstance(error, OfflineModeIsEnabled):
        return HubError(f"{target}: the Hub is switched off by HF_HUB_OFFLINE; unset it to go on")
    elif isinstance(error, HFValidationError):
        return NotFoundError(
            f"{target.repo_id!r} is neither a folder here ({Path.cwd()}) nor a repository's name, which reads"
            f" 'owner/name': {error}"
        )
    elif isinstance(error, ValueError | RuntimeError) and isinstance(
        cause, Exception
    ):  # a forced download, or an upload, that failed
        return _translate(cause, target)
    elif not isinstance(error, _http_error()):
        return HubError(
            f"{target}: {str(error).strip().rstrip('.')}. Check the token, the disk's space and who may"
            " write to the cache"
        )
    sought = isinstance(error, LocalEntryNotFoundError)
    reason = cause if sought and cause else error
    return HubError(
        f"{target}: no connection to {target.hub} ({type(reason).__name__}: {reason})"
        f"{', and it is not in the cache' if sought else ''}. Check the network and HF_ENDPOINT"
    )


def _not_cached(target: Target) -> NotFoundError:
    switch = "local_files_only=True" if target.local_files_only else "HF_HUB_OFFLINE"
    return NotFoundError(
        f"{target} is not, or not wholly, in the cache, and {switch} forbids fetching it. Load it once"
        f" without {switch}, or name the cache_dir it was loaded to"
    )


def _refused(error: Exception, target: Target) -> PalmetteError:
    """What an answer other than success means."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    page = f"{target.hub}/{target.repo_id}"
    login = "pass token=…, set HF_TOKEN, or run: hf auth login"
    if isinstance(error, GatedRepoError):
        return HubError(f"{target} is gated: ask for access at {page}, then {login}")
    if isinstance(error, RevisionNotFoundError):
        revision = target.revision or "main"
        return NotFoundError(
            f"{target.repo_id!r} has no revision {revision!r}; its branches and tags are at {page}/tree/main"
        )
    if isinstance(error, RepositoryNotFoundError):
        return NotFoundError(
            f"no repository {target.repo_id!r} at {target.hub}, and no such folder in {Path.cwd()}."
            f" Check the name; if it is private, {login}"
        )
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    said = str(getattr(error, "server_message", None) or error).strip().rstrip(".")
    if status == 401:
        return HubError(
            f"{target}: {target.hub} does not accept the token (401: {said}). For a valid one, {login}"
        )
    if status == 403:
        return HubError(
            f"{target}: the token may not do this (403: {said}). With one that may (write), {login}"
        )
    return HubError(f"{target}: {target.hub} answered {status}: {said}. Try again later, or see {page}")
