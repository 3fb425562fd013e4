"""Feedback on hits, stored in the folder of the index."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from palmette.errors import InputError, NotFoundError, StoreError, shown
from palmette.store.local.backend import LocalBackend
from palmette.store.local.feedback import FeedbackLog
from palmette.store.tenants import FilteredBackend

log = logging.getLogger("palmette.feedback")

if TYPE_CHECKING:
    from palmette.store.protocols import Backend
    from palmette.types import Document


class TakesFeedback:
    """The part of an index that takes feedback."""

    backend: Backend

    if TYPE_CHECKING:

        def get(self, ids: list[str]) -> list[Document | None]:
            """Return documents by id."""

    @property
    def feedback_log(self) -> FeedbackLog:
        """Log of votes and recorded searches: reads, exports and deletes them, and turns ``recording`` on."""
        backend, wall, prefix = self.backend, "", ""
        if isinstance(backend, FilteredBackend):
            wall, prefix, backend = str(backend.within), backend.prefix, backend.backend
        if not isinstance(backend, LocalBackend):
            raise StoreError("feedback is kept in the folder of an index; a collection has none")
        return FeedbackLog(Path(backend.path), wall, prefix)

    def record_search(
        self, query: str, ids: Sequence[str], *, person: str | None = None, run: str | None = None
    ) -> bool:
        """Record a search of a person if recording is turned on; returns whether it is.

        ``Index.search`` records nothing by itself, since most searches are made by evaluations and programs. A search
        that there is no room to record is logged, since the search itself has its answer.
        """
        try:
            feedback = self.feedback_log
        except StoreError:  # a collection
            return False
        try:
            return feedback.record(query, ids, person=person, run=run)
        except StoreError as error:
            log.warning("a search was not recorded: %s", error)
            return False

    def feedback(
        self,
        query: str | None = None,
        id: str | None = None,
        *,
        useful: bool,
        person: str | None = None,
        run: str | None = None,
    ) -> None:
        """Record whether a document was useful for a query; ``palmette refit`` learns from it.

        Args:
            query: The query, or ``None`` for the query of a recorded ``run``.
            id: Id of the document, or ``None`` for the first hit of the ``run``.
            useful: Whether the document was useful.
            person: Name of the person, stored as a keyed hash, by which the person's votes can be deleted.
            run: Id of a framework's run, such as LangChain's, whose search was recorded
                (``index.feedback_log.recording = True``).
        """
        if not isinstance(useful, bool):
            raise InputError(f"useful must be True or False, got {shown(useful)}")
        feedback = self.feedback_log
        if query is None or id is None:
            if run is None:
                raise InputError("feedback is about a query and the id of a document, or about a run: give them")
            search = feedback.search_of(run, query)
            if not search.documents:
                raise NotFoundError(f"run {shown(run)} found nothing: name query and id")
            query = search.query if query is None else query
            id = search.documents[0] if id is None else id
        if not str(query).strip():
            raise InputError(f"feedback: the query must not be empty, got {shown(query)}")
        if self.get([id])[0] is None:
            raise NotFoundError(f"there is no document {shown(id)}: feedback is about documents of this index")
        feedback.add(query, id, useful, person=person, run=run)
