import pytest
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import Document, NodeRelationship, TextNode, TransformComponent

from llama_index.retrievers.palmette import PalmetteQuery, TreeRetriever
from palmette import Document as Stored
from palmette.errors import DuplicateIdError, InputError
from palmette.store.local.writer import LocalWriter

TEXT = "The owl hunts by night. It lives in the forest. The fox does too, near the river."


def found(retriever, query, **settings):
    return [result.node_id for result in retriever.retrieve(PalmetteQuery(query, **settings))]


def test_add_is_idempotent_and_strict_and_nodes_are_deleted(writable, nodes):
    assert writable.add(nodes) == [node.node_id for node in nodes]
    changed = nodes[0].model_copy(update={"text": "another text"})
    with pytest.raises(DuplicateIdError, match=nodes[0].node_id):
        writable.add([TextNode(id_="new", text="new"), changed])
    assert len(writable.index) == len(nodes)
    gone = [node.node_id for node in nodes[:2]]
    assert sorted(writable.delete_nodes([*gone, "never there"])) == sorted(gone)
    assert writable.delete_nodes(gone) == []
    assert set(gone).isdisjoint(found(writable, nodes[0].text, top_k=100))
    assert writable.get_nodes([*gone, nodes[2].node_id]) == [nodes[2]]


def test_delete_ref_doc(writable, empty):
    owls = [f"owl-{place}" for place in ("forest", "garden", "house", "river")]
    assert sorted(writable.delete_ref_doc("doc-owl")) == owls
    assert writable.delete_ref_doc("doc-owl") == []
    assert not any(name.startswith("owl") for name in found(writable, "owl", top_k=100))
    assert empty.delete_ref_doc("a") == []
    empty.add([Document(id_="a", text="an owl"), Document(id_="b", text="a fox")])
    assert empty.delete_ref_doc("a") == ["a"], "documents are their own source"
    assert found(empty, "owl", filters={"ref_doc_id": "b"}) == ["b"]


def test_documents_that_came_another_way_are_their_own_source(empty):
    empty.index.add([Stored("a", "an owl"), Stored("b", "a fox")])
    assert empty.delete_ref_doc("a") == ["a"]
    for told in (True, False):
        assert empty.refresh_ref_docs([Document(id_="b", text="a red fox")]) == [told]
    assert [document.text for document in empty.index.documents()] == ["a red fox"]


@pytest.fixture
def splitting(model):
    splitter = SentenceSplitter(chunk_size=12, chunk_overlap=0, include_metadata=False)
    documents = [Document(id_="a", text=TEXT), Document(id_="b", text="A hen lays eggs.")]
    return TreeRetriever.from_documents(documents, model, transformations=[splitter], similarity_top_k=100)


def test_documents_are_transformed(splitting):
    nodes = [result.node for result in splitting.retrieve(PalmetteQuery("owl", filters={"ref_doc_id": "a"}))]
    assert len(nodes) > 1
    assert {node.ref_doc_id for node in nodes} == {"a"}
    assert all(node.text in TEXT for node in nodes)
    assert any(NodeRelationship.NEXT in node.relationships for node in nodes)
    assert len(splitting.insert(Document(id_="c", text=TEXT)).added) == len(nodes)


def test_refresh_writes_what_changed(splitting, model, monkeypatch):
    before = {document.key for document in splitting.index.documents()}
    same, changed = Document(id_="a", text=TEXT), Document(id_="b", text="A hen lays a golden egg.")
    new = Document(id_="c", text="A bat.")
    assert splitting.refresh_ref_docs([same, changed, new]) == [False, True, True]
    after = {document.key: document for document in splitting.index.documents()}
    assert {d.text for d in after.values() if d.metadata["ref_doc_id"] == "b"} == {changed.text}
    assert {key for key, d in after.items() if d.metadata["ref_doc_id"] == "a"} < before
    monkeypatch.setattr(type(model), "encode_documents", lambda *_: pytest.fail("nothing to encode"))
    assert splitting.refresh_ref_docs([same, changed, new]) == [False, False, False]


class Shout(TransformComponent):
    """Changes documents in place, as extractors do: they are compared as they were before."""

    def __call__(self, nodes, **kwargs):
        for node in nodes:
            node.set_content(node.get_content().upper())
        return nodes


def test_transformations_are_the_retrievers(empty):
    empty.transformations = [Shout()]
    for told in (True, False):
        assert empty.refresh_ref_docs([Document(id_="a", text="an owl")]) == [told]
    assert empty.get_nodes(["a"])[0].text == "AN OWL"
    empty.transformations = 1.0
    with pytest.raises(InputError, match="transformations must be LlamaIndex transformations"):
        empty.insert(Document(text="an owl"))
    empty.transformations = [-1, "splitter"]
    with pytest.raises(InputError, match=r"such as splitters; got \[-1, 'splitter'\]"):
        empty.insert(Document(text="an owl"))


@pytest.mark.parametrize(("split", "scheme"), [(False, ""), (True, ""), (True, "qdrant+local://")])
def test_from_documents_brings_an_index_up_to_date(model, tmp_path, split, scheme):
    splitter = [SentenceSplitter(chunk_size=12, chunk_overlap=0)] if split else None
    if scheme:
        pytest.importorskip("qdrant_client")

    def start(*documents):
        how = {"transformations": splitter, "index_path": f"{scheme}{tmp_path}/index"}
        retriever = TreeRetriever.from_documents(documents, model, **how)
        held = sorted((one.metadata["ref_doc_id"], one.text) for one in retriever.index.documents())
        retriever.index.close()
        return held

    owl, fox = Document(id_="a", text=TEXT), Document(id_="b", text="A fox.")
    first = start(owl, fox)
    assert start(owl) == first
    assert start(owl, Document(id_="b", text="A hen.")) == [*first[:-1], ("b", "A hen.")]


@pytest.mark.parametrize("broken", ["encode_documents", "commit"])
def test_a_failed_replacement_leaves_the_old_nodes_alone(splitting, model, monkeypatch, broken):
    """Old nodes go in the write that brings the new ones."""

    def fail(*args):
        raise RuntimeError("out of memory")

    before = {document.key: document for document in splitting.index.documents()}
    owl, hen = Document(id_="a", text="An owl."), Document(id_="b", text="A hen sings.")
    with monkeypatch.context() as patched:
        patched.setattr(type(model) if broken == "encode_documents" else LocalWriter, broken, fail)
        for replace, given in ((splitting.update_ref_doc, owl), (splitting.refresh_ref_docs, [owl, hen])):
            with pytest.raises(RuntimeError, match="out of memory"):
                replace(given)
            assert {document.key: document for document in splitting.index.documents()} == before
    assert splitting.refresh_ref_docs([owl, hen]) == [True, True]
    assert sorted(document.text for document in splitting.index.documents()) == ["A hen sings.", "An owl."]


def test_no_search_sees_a_document_half_replaced(splitting, monkeypatch):
    """Every state that is committed holds the nodes of one version."""
    seen, commit = [], LocalWriter.commit

    def look(self):
        commit(self)
        seen.append(sorted(d.text for d in splitting.index.documents({"ref_doc_id": "a"})))

    monkeypatch.setattr(LocalWriter, "commit", look)
    changes = splitting.update_ref_doc(Document(id_="a", text="An owl."))
    assert seen in ([["An owl."]], [["An owl."]] * 2), "the second commit notes the units"
    assert (len(changes.added), len(changes.deleted) > 1) == (1, True)


def test_documents_and_their_nodes(splitting):
    nodes = {document.key: document.metadata["ref_doc_id"] for document in splitting.index.documents()}
    splitting.insert(Document(id_="c", text="A bat."))
    told = splitting.ref_doc_info
    assert list(told) == ["a", "b", "c"]
    for name in "ab":
        assert told[name].node_ids == [id for id, source in nodes.items() if source == name]
    assert splitting.delete_ref_doc("c", delete_from_docstore=False) == told["c"].node_ids
    assert splitting.delete_nodes(told["a"].node_ids, delete_from_docstore=True) == told["a"].node_ids
    assert list(splitting.ref_doc_info) == ["b"]
    splitting.add([TextNode(id_="d", text="A cow.", metadata={"n": 1})])
    assert splitting.ref_doc_info["d"].metadata == {"n": 1}


def test_feedback_on_a_passage_counts_for_its_document(model):
    retriever = TreeRetriever.from_documents(
        [Document(id_="long", text="\n\n".join([TEXT] * 9))], model, passages={"tokens": 30}, similarity_top_k=1
    )
    [hit] = retriever.retrieve("where does the fox live?")
    assert hit.node.node_id.startswith("long#")
    retriever.feedback("where does the fox live?", hit.node.node_id, useful=True)
    assert [vote.document for vote in retriever.index.feedback_log.votes()] == ["long"]
