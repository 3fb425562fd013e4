"""Other retrievers' documents, ranked by a trained model."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, Literal

from langchain_core.callbacks import Callbacks
from langchain_core.documents import BaseDocumentCompressor, Document
from pydantic import ConfigDict, Field, JsonValue, PrivateAttr

from langchain_palmette.fields import Loading, ModelName
from langchain_palmette.live import find, open_model
from palmette.threads import run_in_thread

if TYPE_CHECKING:
    from palmette.model import Model

__all__ = ["PalmetteReranker"]


class PalmetteReranker(Loading, BaseDocumentCompressor):
    """Ranks documents by a checkpoint's own score and the words they share with the query, and keeps the best.

    Setup:
        .. code-block:: bash

            pip install 'palmette[langchain]'

    Instantiate:
        .. code-block:: python

            from langchain_palmette import PalmetteReranker

            reranker = PalmetteReranker(model="me/ckpt", top_n=5)

    Usage:
        .. code-block:: python

            reranker.compress_documents(documents, "a question")[0].metadata["relevance_score"]

    Use within a chain:
        .. code-block:: python

            from langchain_classic.retrievers import ContextualCompressionRetriever

            ContextualCompressionRetriever(base_compressor=reranker, base_retriever=any_retriever)
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    model: ModelName = Field(frozen=True)
    """A checkpoint, by repository, folder or object."""
    top_n: int | None = Field(default=None, ge=1)
    """How many documents to keep; ``None`` for all."""
    score_key: str | None = "relevance_score"
    """Metadata key for the score; ``None`` for none."""
    lexical: Annotated[float, Field(ge=0, le=1)] | Literal["auto"] = "auto"
    """How much words count beside the method: 0 (not at all) … 1 (words alone), ``"auto"`` for what the checkpoint has
    learned. Which words are rare is told by the documents given, so scores are to be compared with each other only;
    with 0 they are the method's, whatever is beside them.
    """
    language: str | None = "english"
    """Whose word endings are cut off; ``None`` for nobody's."""
    search_options: dict[str, JsonValue] = Field(default_factory=dict)
    """Options of the checkpoint's method, such as ``{"level": 6}``."""

    _model: Model | None = PrivateAttr(default=None)

    def model_post_init(self, context: Any, /) -> None:
        """Take hold of a model that was given as an object."""
        super().model_post_init(context)
        self._model = find(str(self.model))

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """Copies of the best documents, best first; equal ones stay in their order, blank ones come last."""
        from palmette.types import Document as Stored

        if not documents:
            return []
        if self._model is None:
            self._model = open_model(str(self.model), self._loading())
        filled = [place for place, document in enumerate(documents) if document.page_content.strip()]
        given = [
            Stored(str(place), documents[place].page_content, documents[place].metadata) for place in filled
        ]
        how: dict[str, Any] = {"lexical": self.lexical, "language": self.language, **self.search_options}
        found = self._model.score(query, given, **how) if given else ()
        scores = dict(zip(filled, map(float, found), strict=True))
        lowest = min([0.0, *scores.values()])
        best = sorted(range(len(documents)), key=lambda place: -scores.get(place, -inf))[: self.top_n]
        return [self._copy(documents[place], scores.get(place, lowest)) for place in best]

    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """See :meth:`compress_documents`."""
        return await run_in_thread(self.compress_documents, documents, query, callbacks)

    def _copy(self, document: Document, score: float) -> Document:
        told = {} if self.score_key is None else {self.score_key: score}
        return document.model_copy(update={"metadata": document.metadata | told})
