"""LangChain's own suites, unmodified."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_core.embeddings import Embeddings
from langchain_core.indexing import DocumentIndex
from langchain_core.retrievers import BaseRetriever
from langchain_tests.integration_tests import EmbeddingsIntegrationTests, RetrieversIntegrationTests
from langchain_tests.integration_tests.indexer import AsyncDocumentIndexTestSuite, DocumentIndexerTestSuite
from langchain_tests.unit_tests import EmbeddingsUnitTests

from langchain_palmette import PalmetteEmbeddings, PalmetteRetriever, TreeRetriever
from support.tiny import tree


class _OfFolder:
    folder: Path

    @pytest.fixture(autouse=True)
    def _take_folder(self, folder: Path) -> None:
        type(self).folder = folder

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"index_path": str(self.folder)}

    @property
    def retriever_query_example(self) -> str:
        return "where does the green owl live?"


class TestTreeRetriever(_OfFolder, RetrieversIntegrationTests):
    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return TreeRetriever


class TestPalmetteRetriever(_OfFolder, RetrieversIntegrationTests):
    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return PalmetteRetriever


class TestDocumentIndex(DocumentIndexerTestSuite):
    @pytest.fixture
    def index(self, empty: TreeRetriever) -> DocumentIndex:
        return empty


class TestAsyncDocumentIndex(AsyncDocumentIndexTestSuite):
    @pytest.fixture
    async def index(self, empty: TreeRetriever) -> DocumentIndex:
        return empty


class _EncoderVectors:
    @property
    def embeddings_class(self) -> type[Embeddings]:
        return PalmetteEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return {"encoder": "fake:16"}


class _LevelVectors(_EncoderVectors):
    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return {"model": tree(), "representation": "sqrt_probabilities", "level": 3}


class TestEncoderUnit(_EncoderVectors, EmbeddingsUnitTests):
    pass


class TestEncoderIntegration(_EncoderVectors, EmbeddingsIntegrationTests):
    pass


class TestLevelUnit(_LevelVectors, EmbeddingsUnitTests):
    pass


class TestLevelIntegration(_LevelVectors, EmbeddingsIntegrationTests):
    pass
