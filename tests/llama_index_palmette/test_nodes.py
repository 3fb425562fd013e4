"""Nodes come back as they went in."""

from datetime import date

import numpy as np
import pytest
from llama_index.core.schema import (
    Document,
    ImageDocument,
    ImageNode,
    IndexNode,
    MediaResource,
    MetadataMode,
    Node,
    NodeRelationship,
    ObjectType,
    RelatedNodeInfo,
    TextNode,
    TransformComponent,
)

from llama_index.retrievers.palmette import TreeRetriever
from llama_index.retrievers.palmette.nodes import to_document
from palmette import Index
from palmette.errors import InputError, NotFoundError


class Page(TextNode):
    number: int = 0

    @classmethod
    def class_name(cls):
        return "TextNode"  # as careless subclasses do


MEDIA = MediaResource(data=b"\x00\xff", mimetype="image/png", url="https://example.org/owl.png")
PICTURE = ImageDocument(id_="picture", text="an owl", image=b"\x89PNG...")
METADATA = {"text": "ünïcode \U0001f680\n", "int": -(2**40), "float": 1e-308, "none": None, "bool": True, "": "no name"}
METADATA |= {"list": [1, "a", None, 0.1], "nested": {"deep": {"er": [{"x": 1}]}, "empty": {}}}
RELATED = RelatedNodeInfo(node_id="ä", node_type=ObjectType.DOCUMENT, metadata=METADATA, hash="h")
COMMON = {
    "metadata": METADATA,
    "embedding": [0.1, -1e30],
    "excluded_embed_metadata_keys": ["int", "other"],
    "excluded_llm_metadata_keys": ["float"],
    "relationships": {
        NodeRelationship.SOURCE: RELATED,
        NodeRelationship.NEXT: RelatedNodeInfo(node_id="n"),
        NodeRelationship.CHILD: [RELATED, RelatedNodeInfo(node_id="c", node_type=ObjectType.TEXT)],
    },
    "metadata_template": "{key}={value}",
    "metadata_separator": "; ",
    "text_template": "{content} ({metadata_str})",
}
NODES = [
    TextNode(id_="a/b ü", text="an owl\n", start_char_idx=3, **COMMON),
    TextNode(text="an owl", relationships={NodeRelationship.CHILD: []}),
    ImageNode(text="an owl", image="aGVsbG8=", image_url="https://example.org/owl.png", **COMMON),
    IndexNode(text="an owl", index_id="x", **COMMON),
    IndexNode(text="an owl", index_id="x", obj=TextNode(text="an owl", **COMMON)),
    IndexNode(text="the owl's picture", index_id="x", obj=PICTURE),
    PICTURE,
    Document(text="an owl", image_resource=MEDIA, **COMMON),
    Node(text_resource=MediaResource(text="an owl"), image_resource=MEDIA, audio_resource=MEDIA, **COMMON),
    Page(id_="p", text="an owl", number=7),
]


@pytest.mark.parametrize("node", NODES, ids=lambda node: type(node).__name__)
def test_round_trip(empty, node):
    before = node.model_copy(deep=True)
    empty.add([node])
    [back] = empty.get_nodes([node.node_id])
    [result] = empty.index.search("owl", k=1)
    assert type(back) is type(node)
    assert back == node == before
    assert list(back.metadata) == list(node.metadata)
    assert back.hash == node.hash
    assert back.relationships == node.relationships
    for mode in MetadataMode:
        assert back.get_content(mode) == node.get_content(mode)
    assert result.document.text == node.get_content(MetadataMode.EMBED)
    if isinstance(node, IndexNode) and node.obj:
        assert back.obj.to_dict() == node.obj.to_dict()
        assert getattr(back.obj, "image", None) == getattr(node.obj, "image", None)


def test_what_is_embedded_leaves_excluded_keys_out():
    metadata = {"animal": "bird", "file": "x"}
    node = TextNode(text="an owl", metadata=metadata, excluded_embed_metadata_keys=["file"])
    assert to_document(node).text == "animal: bird\n\nan owl"
    assert to_document(node).metadata["file"] == "x"  # and can be filtered by


def test_a_document_whose_metadata_become_json_is_refreshed_once(empty):
    document = Document(id_="a", text="an owl", metadata={"day": date(2026, 1, 2)})
    assert [empty.refresh_ref_docs([document]) for _ in range(2)] == [[True], [False]]
    [node] = empty.get_nodes(["a"])
    assert (node.metadata, document.metadata) == ({"day": "2026-01-02"}, {"day": date(2026, 1, 2)})
    assert empty.index.get(["a"])[0].text == node.get_content(MetadataMode.EMBED)


def test_a_class_that_is_gone_is_named(empty):
    document = to_document(Page(id_="p", text="an owl"))
    assert document.payload["llama_index"]["class"] == f"{Page.__module__}.Page"
    document.payload["llama_index"]["class"] = "elsewhere.Vanished"
    empty.index.add([document])
    with pytest.raises(NotFoundError, match=r"elsewhere\.Vanished.*import"):
        empty.retrieve("owl")


ODD = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id="source", metadata={"when": object()})}


class Unchanged(TransformComponent):
    def __call__(self, nodes, **kwargs):
        return nodes


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (TextNode(id_="row", text="owl", metadata={"when": np.ones(2)}), "'row'.*'when'.*item"),
        (TextNode(id_="set", text="owl", metadata={"a": {"tags": {1}}}), r"'set'.*'a\.tags'.*a sorted list"),
        (TextNode(id_="odd", text="owl", metadata={"when": object()}), "'odd'.*'when'.*write text"),
        (TextNode(id_="rel", text="owl", relationships=ODD), "'rel' must hold JSON values only"),
        (TextNode(id_="twice", text="owl", metadata={"ref_doc_id": "another"}), "ref_doc_id"),
    ],
)
def test_unusable_nodes_are_named_and_nothing_is_kept(model, tmp_path, node, message):
    good = TextNode(text="a fox")
    for transformations in (None, [Unchanged()]):
        how = {"index_path": tmp_path / "index", "transformations": transformations}
        with pytest.raises(InputError, match=message):
            TreeRetriever.from_documents([good, node], model, **how)
    assert list(tmp_path.iterdir()) == []
    retriever = TreeRetriever(Index.in_memory(model))
    with pytest.raises(InputError, match=message):
        retriever.add([good, node])
    assert len(retriever.index) == 0
