"""One change of an index: decide what is new, encode it, commit it as a whole."""

from __future__ import annotations

from collections.abc import Sequence

from tqdm.auto import tqdm

from palmette.errors import DuplicateIdError, InputError
from palmette.index.checks import unique
from palmette.index.results import Changes
from palmette.model import Model
from palmette.store.backend import Backend
from palmette.types import Document

__all__ = ["write"]


def write(
    model: Model,
    backend: Backend,
    given: Sequence[Document],
    *,
    replace: bool,
    delete: Sequence[str] = (),
    batch_size: int = 256,
    progress: bool | None = None,
) -> Changes:
    """Put documents in and take others out, in one transaction; what is there unchanged is not encoded again."""
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, got {batch_size}")
    latest = unique(given)
    with backend.write() as writer:
        held = writer.digests(list(latest))
        changed = {id for id, digest in held.items() if latest[id].digest != digest}
        if changed and not replace:
            raise DuplicateIdError(
                f"{len(changed)} of {len(latest)} ids hold another document already, such as "
                f"{min(changed)!r}: nothing was added; use upsert to replace them, or give new ids"
            )
        deleted = writer.delete([id for id in delete if id not in latest])
        fresh = [document for id, document in latest.items() if id not in held or id in changed]
        hidden = None if progress is None else not progress
        quiet = hidden if len(fresh) > batch_size else True
        with tqdm(total=len(fresh), desc="Indexing", unit="doc", disable=quiet) as bar:
            for start in range(0, len(fresh), batch_size):
                batch = fresh[start : start + batch_size]
                writer.put(batch, model.encode_documents(batch))
                bar.update(len(batch))
    return Changes(
        added=[id for id in latest if id not in held],
        updated=[id for id in latest if id in changed],
        unchanged=[id for id in latest if id in held and id not in changed],
        deleted=deleted,
    )
