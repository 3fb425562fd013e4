"""The writing half of a retriever: LangChain's DocumentIndex, and what vector stores call it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from langchain_core.documents import Document
from langchain_core.indexing import DeleteResponse, DocumentIndex, UpsertResponse

from langchain_palmette.documents import from_stored
from palmette.config import check_keys
from palmette.threads import run_in_thread

if TYPE_CHECKING:
    from palmette.index import Index

__all__ = ["Writing"]

OPTIONS = ("batch_size", "progress")


class Writing(DocumentIndex, ABC):
    """Documents added, replaced, deleted and fetched by id; searches see a write whole or not at all."""

    @property
    @abstractmethod
    def index(self) -> Index:
        """The index behind it."""

    def add_documents(self, documents: Iterable[Document], **kwargs: Any) -> list[str]:
        """Add documents, all or none; what is there already changes nothing. Returns the ids.

        An id that holds another document raises DuplicateIdError: :meth:`upsert` replaces it. Options are
        ``batch_size`` and ``progress``.
        """
        from palmette.data import to_documents

        check_keys(f"{type(self).__name__}.add_documents", kwargs, OPTIONS)
        return self.index.add(list(to_documents(documents)), **kwargs)

    async def aadd_documents(self, documents: Iterable[Document], **kwargs: Any) -> list[str]:
        """See :meth:`add_documents`."""
        return await run_in_thread(self.add_documents, documents, **kwargs)

    def upsert(self, items: Sequence[Document], /, **kwargs: Any) -> UpsertResponse:
        """Add documents, all or none, replacing those whose id exists; unchanged ones cost no encoding."""
        from palmette.data import to_documents

        check_keys(f"{type(self).__name__}.upsert", kwargs, OPTIONS)
        given = list(to_documents(items))
        self.index.upsert(given, **kwargs)
        return UpsertResponse(succeeded=[document.key for document in given], failed=[])

    async def aupsert(self, items: Sequence[Document], /, **kwargs: Any) -> UpsertResponse:
        """See :meth:`upsert`."""
        return await run_in_thread(self.upsert, items, **kwargs)

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> DeleteResponse:
        """Delete by ids, or by ``filter=``; ids that are not there are passed over."""
        check_keys(f"{type(self).__name__}.delete", kwargs, ("filter",))
        gone = self.index.delete(ids, **kwargs)
        return DeleteResponse(num_deleted=len(gone), succeeded=gone, num_failed=0, failed=[])

    async def adelete(self, ids: list[str] | None = None, **kwargs: Any) -> DeleteResponse:
        """See :meth:`delete`."""
        return await run_in_thread(self.delete, ids, **kwargs)

    def get(self, ids: Sequence[str], /, **kwargs: Any) -> list[Document]:
        """Documents by id, without those that are not there."""
        check_keys(f"{type(self).__name__}.get", kwargs, ())
        return [from_stored(document) for document in self.index.get(ids) if document is not None]

    async def aget(self, ids: Sequence[str], /, **kwargs: Any) -> list[Document]:
        """See :meth:`get`."""
        return await run_in_thread(self.get, ids, **kwargs)
