"""A tiny tree, its documents as LangChain's, and a retriever in memory and in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from langchain_core.documents import Document

from langchain_palmette import TreeRetriever
from palmette import TreeModel
from support import tiny
from support.recorder import Recorder


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def make_documents() -> list[Document]:
    return [Document(id=d.id, page_content=d.text, metadata=dict(d.metadata)) for d in tiny.documents()]


@pytest.fixture
def documents() -> list[Document]:
    return make_documents()


@pytest.fixture(scope="session")
def model() -> TreeModel:
    return tiny.tree()


@pytest.fixture(scope="module")
def retriever(model: TreeModel) -> TreeRetriever:
    """For tests that only read; with scores."""
    return TreeRetriever.from_documents(make_documents(), model, score_key="score")


@pytest.fixture
def empty(model: TreeModel) -> TreeRetriever:
    """For tests that write."""
    return TreeRetriever.from_documents([], model)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, model: TreeModel) -> Path:
    """An index folder, for tests that only read."""
    path = tmp_path_factory.mktemp("langchain") / "index"
    TreeRetriever.from_documents(make_documents(), model, index_path=path)
    return path


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, model: TreeModel) -> Path:
    return model.save_pretrained(tmp_path_factory.mktemp("checkpoints") / "tree")
