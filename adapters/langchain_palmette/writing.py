"""Documents added, replaced and deleted: LangChain's DocumentIndex."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from langchain_core.documents import Document
from langchain_core.indexing import DeleteResponse, DocumentIndex, UpsertResponse

from langchain_palmette.documents import from_stored, to_stored
from palmette.config import check_keys
from palmette.threads import AsyncTwin

if TYPE_CHECKING:
    from palmette import Index

OPTIONS = ("batch_size", "progress")


class Writing(DocumentIndex, ABC):
    """Documents added, replaced, deleted and fetched by id; a search sees a write whole or not at all."""

    @property
    @abstractmethod
    def index(self) -> Index:
        """The index behind it."""

    def add_documents(self, documents: Iterable[Document], **kwargs: Any) -> list[str]:
        """Add documents, all or none; an unchanged document is skipped. Returns the ids.

        An id that holds another document raises DuplicateIdError: :meth:`upsert` replaces it. Options are
        ``batch_size`` and ``progress``.
        """
        check_keys(f"{type(self).__name__}.add_documents", kwargs, OPTIONS)
        return self.index.add(to_stored(documents), **kwargs)

    def upsert(self, items: Sequence[Document], /, **kwargs: Any) -> UpsertResponse:
        """Add documents, all or none, replacing those whose id exists; unchanged ones cost no encoding."""
        check_keys(f"{type(self).__name__}.upsert", kwargs, OPTIONS)
        documents = to_stored(items)
        self.index.upsert(documents, **kwargs)
        return UpsertResponse(succeeded=[document.key for document in documents], failed=[])

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> DeleteResponse:
        """Delete by ids, or by ``filter=``; unknown ids are skipped."""
        check_keys(f"{type(self).__name__}.delete", kwargs, ("filter",))
        deleted = self.index.delete(ids, **kwargs)
        return DeleteResponse(num_deleted=len(deleted), succeeded=deleted, num_failed=0, failed=[])

    def get(self, ids: Sequence[str], /, **kwargs: Any) -> list[Document]:
        """Documents by id; unknown ids are skipped."""
        check_keys(f"{type(self).__name__}.get", kwargs, ())
        return [from_stored(document) for document in self.index.get(ids) if document is not None]

    aadd_documents = AsyncTwin(add_documents).method
    aupsert = AsyncTwin(upsert).method
    adelete = AsyncTwin(delete).method
    aget = AsyncTwin(get).method
