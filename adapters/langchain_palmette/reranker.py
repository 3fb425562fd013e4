"""PalmetteReranker: ranks other retrievers' documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from langchain_core.callbacks import Callbacks
from langchain_core.documents import BaseDocumentCompressor, Document
from pydantic import ConfigDict, Field, JsonValue

from langchain_palmette.loading import Loading, ModelName
from palmette.index.frameworks import rerank
from palmette.machine.threads import AsyncTwin
from palmette.methods.base import DEFAULT_ENCODER


class PalmetteReranker(Loading, BaseDocumentCompressor):
    """Ranks documents by a checkpoint's score, and the words they share with the query, and keeps the best.

    .. code-block:: python

        reranker = PalmetteReranker(top_n=5)  # or a trained model: PalmetteReranker(model="me/ckpt")
        reranker.compress_documents(documents, "a question")[0].metadata["relevance_score"]
        ContextualCompressionRetriever(base_compressor=reranker, base_retriever=any_retriever)
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    model: ModelName = Field(default=DEFAULT_ENCODER, frozen=True)
    """A checkpoint, by repository or folder, or a loaded model; by default the default encoder, untrained."""
    top_n: int | None = Field(default=None, ge=1)
    """Number of documents to keep; ``None`` for all."""
    score_key: str | None = "relevance_score"
    """Metadata key of the score; ``None`` leaves it out."""
    lexical: Annotated[float, Field(ge=0, le=1)] | Literal["auto"] = "auto"
    """Weight of words beside the method: 0 (none) … 1 (words alone), ``"auto"`` for the weight that the checkpoint has
    learned. IDF is computed on the documents given, so scores of different calls must not be compared, except with 0.
    """
    language: str | None = "english"
    """Language of the stemmer; ``None`` for no stemming."""
    search_options: dict[str, JsonValue] = Field(default_factory=dict)
    """Options of the checkpoint's method, such as ``{"level": 6}``."""

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """Return copies of the best documents, best first; ties keep their order, blank documents are last."""
        if not documents:
            return []
        texts = [document.page_content for document in documents]
        metadata = [document.metadata for document in documents]
        ids = [document.id for document in documents]
        options: dict[str, Any] = {"lexical": self.lexical, "language": self.language, **self.search_options}
        best = rerank(self.loaded("model"), query, texts, metadata, ids, self.top_n, **options)
        copies = [documents[row].model_copy(update={"metadata": {**metadata[row]}}) for row, _ in best]
        if self.score_key is not None:
            for document, (_, score) in zip(copies, best, strict=True):
                document.metadata[self.score_key] = score
        return copies

    acompress_documents = AsyncTwin(compress_documents).method
