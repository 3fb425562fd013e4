"""A tiny tree over a deterministic encoder, and nodes about animals."""

import pytest
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode

from llama_index.retrievers.palmette import TreeRetriever
from palmette import FakeEncoder, Index, TreeModel

ANIMALS = ("cat", "dog", "owl", "fox", "hen", "bat")
PLACES = ("garden", "forest", "house", "river")


def animal_nodes():
    nodes = []
    for number, animal in enumerate(ANIMALS):
        for year, place in enumerate(PLACES, 2020):
            metadata = {"animal": animal, "year": year, "tags": [place, "wild" if number % 2 else "tame"]}
            hidden = {"excluded_embed_metadata_keys": [*metadata], "excluded_llm_metadata_keys": ["tags"]}
            source = RelatedNodeInfo(node_id=f"doc-{animal}", hash=f"hash-{animal}")
            node = TextNode(
                id_=f"{animal}-{place}", text=f"the {animal} lives in the {place}", metadata=metadata, **hidden
            )
            node.relationships[NodeRelationship.SOURCE] = source
            nodes.append(node)
    return nodes


@pytest.fixture(scope="session")
def model():
    texts = [node.text for node in animal_nodes()]
    pairs = [(f"where does a {' '.join(text.split()[1:])}", text) for text in texts]
    return TreeModel.fit(pairs, encoder=FakeEncoder(32), depth=4, steps=5, batch_size=8, progress=False)


@pytest.fixture
def nodes():
    return animal_nodes()


@pytest.fixture(scope="session")
def shared_index(model):
    """Read-only, for tests that only search."""
    retriever = TreeRetriever.from_documents(animal_nodes(), model)
    return retriever.index


@pytest.fixture
def retriever(shared_index):
    return TreeRetriever(shared_index, similarity_top_k=3)


@pytest.fixture
def writable(model, nodes):
    return TreeRetriever.from_documents(nodes, model, similarity_top_k=3)


@pytest.fixture
def on_disk(model, nodes, tmp_path):
    how = {"index_path": tmp_path / "index", "similarity_top_k": 3, "level": 3}
    retriever = TreeRetriever.from_documents(nodes, model, **how)
    yield retriever
    retriever.index.close()


@pytest.fixture
def empty(model):
    return TreeRetriever(Index.in_memory(model))
