"""LangChain's own suites, unmodified."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
from langchain_core.indexing import DocumentIndex
from langchain_core.vectorstores import VectorStore
from langchain_tests.integration_tests import (
    EmbeddingsIntegrationTests,
    RetrieversIntegrationTests,
    VectorStoreIntegrationTests,
)
from langchain_tests.integration_tests.indexer import AsyncDocumentIndexTestSuite, DocumentIndexerTestSuite
from langchain_tests.unit_tests import EmbeddingsUnitTests

from langchain_palmette import PalmetteEmbeddings, PalmetteVectorStore, TreeRetriever
from palmette import Index
from support import tiny


class TestTreeRetriever(RetrieversIntegrationTests):
    retriever_constructor = TreeRetriever
    retriever_constructor_params: Any = None
    retriever_query_example = "where does the green owl live?"

    @pytest.fixture(autouse=True)
    def _take_folder(self, folder: Path) -> None:
        type(self).retriever_constructor_params = {"index_path": str(folder)}


class TestVectorStore(VectorStoreIntegrationTests):
    @pytest.fixture(params=["layers", "tree"])
    def vectorstore(self, request: pytest.FixtureRequest) -> VectorStore:
        return PalmetteVectorStore.from_index(Index.in_memory(tiny.METHODS[request.param]()))


class TestDocumentIndex(DocumentIndexerTestSuite):
    @pytest.fixture
    def index(self, empty: TreeRetriever) -> DocumentIndex:
        return empty


class TestAsyncDocumentIndex(AsyncDocumentIndexTestSuite):
    @pytest.fixture
    async def index(self, empty: TreeRetriever) -> DocumentIndex:
        return empty


class TestEncoderUnit(EmbeddingsUnitTests):
    embeddings_class = PalmetteEmbeddings
    embedding_model_params: ClassVar[dict[str, Any]] = {"encoder": "fake:16"}


class TestEncoderIntegration(EmbeddingsIntegrationTests):
    embeddings_class = PalmetteEmbeddings
    embedding_model_params: ClassVar[dict[str, Any]] = {"encoder": "fake:16"}
