"""Copies, backups and repairs of an index."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from palmette.errors import StoreError
from palmette.index.folder import MODEL, Engine, absolute, as_model, copy_index, local_path, repair_folder
from palmette.index.write import note_units
from palmette.model import Model
from palmette.sources.cutting import Cutter
from palmette.store.backend import Backend
from palmette.store.local.backend import LocalBackend
from palmette.store.local.feedback import FeedbackLog
from palmette.store.local.folder import atomic_folder
from palmette.store.qdrant.url import is_url
from palmette.store.repair import Repair


class Copying:
    """The part of an index that copies it, whole or not at all."""

    model: Model
    backend: Backend
    _cutter: Cutter

    if TYPE_CHECKING:

        @property
        def engine(self) -> Engine:
            """Search engine of the arrays."""

        @property
        def feedback_log(self) -> FeedbackLog:
            """Votes and recorded searches."""

        @classmethod
        def open(cls, path: str | Path, model: Model | None = None, **options: Any) -> Self:
            """Open an index."""

        def __enter__(self) -> Self: ...

        def __exit__(self, *_: object) -> None: ...

    def copy_to(
        self,
        path: str | Path,
        *,
        model: Model | str | Path | None = None,
        batch_size: int = 1024,
        progress: bool | None = None,
    ) -> Self:
        """Copy to a new folder or collection, compact, whole or not at all; only another ``model`` encodes anew."""
        path, made = absolute(path), self.model if model is None else as_model(model)
        again = made.fingerprint != self.model.fingerprint
        copy_index(path, made, self.backend, batch_size, encode=again, progress=progress)
        own = {"passages": self._cutter.how} if self._cutter.is_splitter else {}
        copy = type(self).open(path, made, verify=False, engine=self.engine, **own)
        note_units(made, copy.backend)  # of a part, or by another model, they are others
        return copy

    def backup(self, path: str | Path) -> None:
        """Copy files and database to a new folder, one consistent state, while others read and write.

        The copy is an index like any other. :meth:`copy_to` copies what a filter shows, or for another model.
        """
        if not isinstance(self.backend, LocalBackend):
            raise StoreError("only a whole local index can be backed up: index.copy_to(…) copies this one")
        with atomic_folder(local_path(path)) as draft:
            self.backend.backup(draft)
            self.feedback_log.copy_to(draft)
            self.model.save_pretrained(draft / MODEL)

    @classmethod
    def restore(cls, backup: str | Path, path: str | Path) -> Self:
        """Check every document and file of a backup, copy it to a new folder, and open that."""
        with cls.open(backup, verify="full") as index:
            index.backup(path)
        return cls.open(path, verify=False)

    @classmethod
    def repair(
        cls, path: str | Path, out: str | Path, model: Model | None = None, *, progress: bool | None = None
    ) -> Repair:
        """Save all that is whole of a damaged index into a new one, and say what is lost; ``path`` is not changed.

        Documents whose arrays are damaged are encoded again, by the model inside or the ``model`` given.
        """
        if is_url(path) or is_url(out):
            raise StoreError("folders are repaired, not collections: their engine has snapshots of its own")
        report = repair_folder(local_path(path), local_path(out), model, progress)
        with cls.open(out, model, verify=False) as index:
            note_units(index.model, index.backend)
        return report
