"""Nodes come back as they went in."""

from datetime import date

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
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


PICTURE = ImageDocument(id_="picture", text="an owl", image=b"\x89PNG...")
words = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)
texts = words.map(lambda word: f"owl {word}")
numbers = st.floats(allow_nan=False, allow_infinity=False)
leaves = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | numbers | words
metadata = st.dictionaries(
    words.filter(lambda key: key != "ref_doc_id"),
    leaves | st.lists(leaves, max_size=3) | st.dictionaries(words, leaves, max_size=2),
    max_size=4,
)
kinds = st.sampled_from([None, ObjectType.TEXT, ObjectType.DOCUMENT])
related = st.builds(RelatedNodeInfo, node_id=words, node_type=kinds, metadata=metadata, hash=st.none() | words)
relatives = {NodeRelationship.SOURCE: related, NodeRelationship.NEXT: related}
relatives[NodeRelationship.CHILD] = st.lists(related, max_size=2)
relationships = st.fixed_dictionaries({}, optional=relatives)
common = {
    "id_": words,
    "metadata": metadata,
    "embedding": st.none() | st.lists(numbers, max_size=3),
    "excluded_embed_metadata_keys": st.lists(words, max_size=2),
    "relationships": relationships,
    "metadata_separator": st.sampled_from(["\n", "; "]),
    "text_template": st.sampled_from(["{metadata_str}\n\n{content}", "{content} ({metadata_str})"]),
}
text_node = st.builds(TextNode, text=texts, start_char_idx=st.none() | st.integers(0, 9), **common)
data = st.none() | st.binary(min_size=1, max_size=9)
media = st.builds(MediaResource, data=data, mimetype=st.just("image/png"), url=st.sampled_from([None, "https://a.b"]))
any_node = st.one_of(
    text_node,
    st.builds(ImageNode, text=texts, image=st.none() | words, image_url=st.none() | words, **common),
    st.builds(IndexNode, text=texts, index_id=words, obj=st.none() | text_node, **common),
    st.builds(Document, text=texts, image_resource=st.none() | media, **common),
    st.builds(Node, text_resource=st.builds(MediaResource, text=texts), image_resource=media, **common),
)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(node=any_node)
@example(node=Page(id_="p", text="an owl", number=7))
@example(node=PICTURE)
@example(node=IndexNode(id_="ref", text="the owl's picture", index_id="x", obj=PICTURE))
def test_round_trip(empty, node):
    before = node.model_copy(deep=True)
    empty.add([node])
    try:
        [back] = empty.get_nodes([node.node_id])
        [result] = empty.index.search("owl", k=1)
    finally:
        empty.delete_nodes([node.node_id])
    assert type(back) is type(node)
    assert back == node == before
    assert list(back.metadata) == list(node.metadata)
    assert back.hash == node.hash
    assert back.relationships == node.relationships
    for mode in MetadataMode:
        assert back.get_content(mode) == node.get_content(mode)
    assert result.document.text == node.get_content(MetadataMode.EMBED)


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
