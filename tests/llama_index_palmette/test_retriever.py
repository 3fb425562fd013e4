import math
from dataclasses import replace

import numpy as np
import pytest
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.schema import IndexNode, NodeWithScore, QueryBundle, TextNode

from llama_index.retrievers.palmette import ExplainedNode, PalmetteQuery, PalmetteRetriever, TreeRetriever
from llama_index.retrievers.palmette.nodes import scored, to_document
from palmette import Document, Index
from palmette.errors import InputError, NotFoundError
from support.frameworks import SECTIONS

QUESTION = "where does the owl live in the forest"


def ids(results):
    return [result.node_id for result in results]


def test_embedding_of_the_bundle_is_used(retriever, model):
    [vector] = model.encoder.plain.encode_queries([QUESTION])
    with_vector = retriever.retrieve(QueryBundle("something else", embedding=vector.tolist()))
    assert with_vector == retriever.retrieve(PalmetteQuery(QUESTION, lexical=0))
    assert retriever.retrieve(QueryBundle("something else", embedding=np.asarray(vector))) == with_vector
    with pytest.raises(InputError, match="32"):
        retriever.retrieve(QueryBundle(QUESTION, embedding=[0.5, 0.5]))


def test_embedding_strings_are_used(retriever, model):
    assert retriever.retrieve(QueryBundle("bat", custom_embedding_strs=[QUESTION])) == retriever.retrieve(QUESTION)
    texts = [QUESTION, "the hen lives in the house"]
    mean = model.encoder.plain.encode_queries(texts).mean(axis=0).tolist()
    both = retriever.retrieve(QueryBundle("bat", custom_embedding_strs=texts))
    assert both == retriever.retrieve(QueryBundle("bat", embedding=mean))


def test_batch_equals_single_queries_and_encodes_once(retriever, model, monkeypatch):
    vector = model.encoder.plain.encode_queries(["a bat"])[0].tolist()
    queries = [
        QUESTION,
        PalmetteQuery("dog house", top_k=1, explain=True),
        QueryBundle("hen"),
        PalmetteQuery("fox", filters={"year": 2021}, level=2),
        QueryBundle("", embedding=vector),
    ]
    batch = retriever.retrieve_batch(queries)
    for query, results in zip(queries, batch, strict=True):
        single = retriever.retrieve(query)
        assert ids(results) == ids(single)
        assert [type(result) for result in results] == [type(result) for result in single]
        expected = pytest.approx([result.score for result in single], abs=1e-6)
        assert [result.score for result in results] == expected
    passes, encode = [], type(model).encode_queries

    def counted(self, texts, options):
        passes.append(len(texts))
        return encode(self, texts, options)

    monkeypatch.setattr(type(model), "encode_queries", counted)
    retriever.retrieve_batch(["one", "two", "three"])
    assert passes == [3]


def test_explanations_are_on_the_wrapper(shared_index):
    retriever = TreeRetriever(shared_index, explain=True, level=3)
    [result, *_] = retriever.retrieve(QUESTION)
    assert isinstance(result, ExplainedNode)
    assert retriever.explain(QUESTION, result.node_id).text == result.explanation.text
    assert "explanation" not in result.node.metadata
    assert result.to_dict()["explanation"]["text"] == result.explanation.text
    [plain] = retriever.retrieve(PalmetteQuery(QUESTION, top_k=1, explain=False))
    assert type(plain) is NodeWithScore
    assert 0 <= retriever.explain(PalmetteQuery(QUESTION, level=1), "bat-river").score <= 1
    with pytest.raises(NotFoundError, match="nobody"):
        retriever.explain(QUESTION, "nobody")


def test_documents_of_another_origin_become_text_nodes(model):
    index = Index.in_memory(model)
    index.add([Document(id="a", text="an owl", metadata={"lang": "en"})])
    [result] = TreeRetriever(index).retrieve("owl")
    assert isinstance(result.node, TextNode)
    assert (result.node_id, result.text, result.metadata["lang"]) == ("a", "an owl", "en")
    assert (result.metadata["citation"], result.metadata["place"]["kind"]) == ("a", "lines")
    assert TreeRetriever(index).upsert([result.node]).updated == ["a"]
    assert index.get(["a"])[0].text == "an owl"  # metadata stays out of the text


def test_index_nodes_lead_to_their_objects(model, retriever):
    inner = TextNode(id_="inner", text="the answer")
    nodes = [
        IndexNode(id_="a", text="an owl", index_id="stored", obj=inner),
        IndexNode(id_="b", text="a fox", index_id="live", obj=retriever),
        IndexNode(id_="c", text="a hen", index_id="given"),
    ]
    outer = TreeRetriever.from_documents(nodes, model, objects=[IndexNode(text="", index_id="given", obj=inner)])
    assert nodes[1].obj is retriever  # the caller's node is not changed
    outer.similarity_top_k = 1
    assert ids(outer.retrieve("an owl")) == ids(outer.retrieve("a hen")) == ["inner"]
    assert ids(outer.retrieve("a fox")) == ids(retriever.retrieve("a fox"))


def test_a_score_of_zero_stays_low_for_index_nodes(retriever):
    """LlamaIndex reads the 0.0 of an index node as 1.0."""
    [hit] = retriever.index.search("an owl", 1)
    node = IndexNode(text="an owl", index_id="x", obj=TextNode(text="the answer"))
    assert scored(replace(hit, document=to_document(node), score=0.0), explain=False).score == math.ulp(0.0)
    assert scored(replace(hit, score=0.0), explain=False).score == 0.0


class Recorder(BaseEventHandler):
    seen: list

    def handle(self, event, **kwargs):
        self.seen.append(event.class_name())


async def test_events_and_callbacks_fire(shared_index, monkeypatch):
    recorder = Recorder(seen=[])
    monkeypatch.setattr(get_dispatcher(), "event_handlers", [recorder])
    debug = LlamaDebugHandler(print_trace_on_end=False)
    retriever = TreeRetriever(shared_index, callback_manager=CallbackManager([debug]))
    retriever.retrieve(QUESTION)
    await retriever.aretrieve(QUESTION)
    retriever.retrieve_batch([QUESTION, "a fox"])
    await retriever.aretrieve_batch([QUESTION])
    assert recorder.seen.count("RetrievalStartEvent") == recorder.seen.count("RetrievalEndEvent") == 5
    pairs = debug.get_event_pairs(CBEventType.RETRIEVE)
    assert len(pairs) == 5
    assert all(len(end.payload["nodes"]) == 2 for _, end in pairs)
    with pytest.raises(InputError, match="empty"):
        retriever.retrieve_batch([QUESTION, " "])
    assert len(debug.get_event_pairs(CBEventType.RETRIEVE)) == 7, "a failing batch ends its callbacks"


def test_passages_of_a_node_know_their_neighbours(model):
    nodes = [TextNode(id_=id, text=f"# Owls\n\n{SECTIONS}") for id in ("a", "b")]
    retriever = PalmetteRetriever.from_documents(nodes, model, passages={"tokens": 25}, similarity_top_k=3)
    found = retriever.retrieve("owls of house 3")[0].node
    number = int(found.node_id.partition("#")[2])
    assert number == 1 or found.prev_node.node_id == f"{found.ref_doc_id}#{number - 1}"
    assert found.next_node is None or found.next_node.node_id == f"{found.ref_doc_id}#{number + 1}"
    assert found.prev_node or found.next_node
    settings = PalmetteRetriever(retriever.index, distinct="near", boost={"kind": {"c": 1}}).settings()
    assert (settings["distinct"], settings["boost"]) == ("near", {"kind": {"c": 1.0}})
