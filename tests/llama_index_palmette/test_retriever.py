import math
import sys

import numpy as np
import pytest
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.schema import IndexNode, NodeWithScore, QueryBundle, TextNode

from llama_index.retrievers.palmette import ExplainedNode, PalmetteQuery, PalmetteRetriever, TreeRetriever
from palmette import Document, Index
from palmette.errors import ConfigError, InputError, NotFoundError

QUESTION = "where does the owl live in the forest"


def ids(results):
    return [result.node_id for result in results]


def test_results_are_scored_best_first(retriever):
    results = retriever.retrieve(QUESTION)
    assert len(results) == 3
    assert results[0].node_id == "owl-forest"
    assert [type(result.score) for result in results] == [float] * 3
    assert [result.score for result in results] == sorted((r.score for r in results), reverse=True)
    assert all(0 <= result.score <= 1 for result in results)


def test_scores_are_those_of_the_index(retriever, shared_index):
    hits = shared_index.search(QUESTION, k=3)
    assert [(r.node_id, r.score) for r in retriever.retrieve(QUESTION)] == [
        (hit.id, hit.score) for hit in hits
    ]


def test_similarity_top_k_may_change_and_exceed_the_index(retriever, nodes):
    retriever.similarity_top_k = 1000
    assert sorted(ids(retriever.retrieve(QUESTION))) == sorted(node.node_id for node in nodes)
    retriever.similarity_top_k = 0
    with pytest.raises(InputError, match="at least 1"):
        retriever.retrieve(QUESTION)


def test_a_query_brings_its_own_settings(retriever, shared_index):
    query = PalmetteQuery(QUESTION, top_k=5, filters={"animal": "fox"}, level=2, score_threshold=0.1)
    expected = shared_index.search(QUESTION, k=5, filter={"animal": "fox"}, level=2, threshold=0.1)
    assert [(r.node_id, r.score) for r in retriever.retrieve(query)] == [
        (hit.id, hit.score) for hit in expected
    ]
    assert len(retriever.retrieve(QUESTION)) == 3  # nothing sticks


def test_queries_can_be_copied_and_read_back():
    from dataclasses import replace

    query = PalmetteQuery(QUESTION, top_k=5, level=2)
    assert replace(query, top_k=1).options == {"level": 2}
    assert PalmetteQuery.from_dict(query.to_dict()) == query


def test_a_query_only_narrows_the_filters(shared_index):
    retriever = TreeRetriever(shared_index, filters={"animal": "fox"}, similarity_top_k=100)
    assert ids(retriever.retrieve(PalmetteQuery(QUESTION, filters={"animal": "owl"}))) == []
    assert ids(retriever.retrieve(PalmetteQuery(QUESTION, filters={"year": 2020}))) == ["fox-garden"]
    with pytest.raises(NotFoundError):
        retriever.explain(QUESTION, "owl-forest")


def test_score_threshold(retriever):
    middle = retriever.retrieve(QUESTION)[1].score
    retriever.score_threshold = middle
    assert [r.score >= middle for r in retriever.retrieve(QUESTION)] == [True, True]


def test_embedding_of_the_bundle_is_used(retriever, model):
    [vector] = model.encoder.plain.encode_queries([QUESTION])
    with_vector = retriever.retrieve(QueryBundle("something else", embedding=vector.tolist()))
    assert [(r.node_id, r.score) for r in with_vector] == [
        (r.node_id, r.score) for r in retriever.retrieve(PalmetteQuery(QUESTION, lexical=0))
    ]
    with pytest.raises(InputError, match="32"):
        retriever.retrieve(QueryBundle(QUESTION, embedding=[0.5, 0.5]))


def test_embedding_strings_are_used(retriever, model):
    assert ids(retriever.retrieve(QueryBundle("bat", custom_embedding_strs=[QUESTION]))) == ids(
        retriever.retrieve(QUESTION)
    )
    texts = [QUESTION, "the hen lives in the house"]
    mean = model.encoder.plain.encode_queries(texts).mean(axis=0).tolist()
    both = retriever.retrieve(QueryBundle("bat", custom_embedding_strs=texts))
    assert [r.score for r in both] == [
        r.score for r in retriever.retrieve(QueryBundle("bat", embedding=mean))
    ]


@pytest.mark.parametrize("query", ["", "  "])
def test_empty_query(retriever, query):
    with pytest.raises(InputError, match="empty"):
        retriever.retrieve(query)


def test_wrappers_are_fresh_and_nodes_untouched(retriever, nodes):
    known = {node.node_id: node for node in nodes}
    for result in retriever.retrieve(QUESTION):
        assert result.node == known[result.node_id]
        assert result.node.hash == known[result.node_id].hash
        result.score = -1
        result.node.metadata["spoilt"] = True
    for result in retriever.retrieve(QUESTION):
        assert result.score >= 0
        assert "spoilt" not in result.node.metadata


def test_batch_equals_single_queries(retriever, model):
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
        assert [result.score for result in results] == pytest.approx(
            [result.score for result in single], abs=1e-6
        )
    assert retriever.retrieve_batch([]) == []


def test_batch_encodes_once(retriever, model, monkeypatch):
    passes = []
    encode = type(model).encode_queries
    monkeypatch.setattr(
        type(model),
        "encode_queries",
        lambda self, texts, options: passes.append(len(texts)) or encode(self, texts, options),
    )
    retriever.retrieve_batch(["one", "two", "three"])
    assert passes == [3]


def test_explanations_are_on_the_wrapper(shared_index):
    retriever = TreeRetriever(shared_index, explain=True, level=3)
    for result in retriever.retrieve(QUESTION):
        assert isinstance(result, ExplainedNode)
        logit = sum(part.value for part in result.explanation.parts)
        assert 1 / (1 + math.exp(-logit)) == pytest.approx(result.score, abs=1e-5)
        again = retriever.explain(QUESTION, result.node_id)
        assert again.text == result.explanation.text
        assert again.score == pytest.approx(result.score, abs=1e-6)
        assert "explanation" not in result.node.metadata
        assert result.to_dict()["explanation"]["text"] == result.explanation.text
    [plain] = retriever.retrieve(PalmetteQuery(QUESTION, top_k=1, explain=False))
    assert type(plain) is NodeWithScore


def test_explain_any_node(retriever):
    assert 0 <= retriever.explain(PalmetteQuery(QUESTION, level=1), "bat-river").score <= 1
    with pytest.raises(NotFoundError, match="nobody"):
        retriever.explain(QUESTION, "nobody")


def test_typos_are_named(model, nodes, tmp_path):
    typo = r"similarty_top_k.*Did you mean 'similarity_top_k'"
    with pytest.raises(ConfigError, match=typo):
        TreeRetriever(Index.in_memory(model), similarty_top_k=3)
    with pytest.raises(ConfigError, match=typo):
        TreeRetriever.from_documents(nodes, model, similarty_top_k=3, index_path=tmp_path / "index")
    assert not (tmp_path / "index").exists()


def test_options_are_checked(model, nodes, shared_index):
    with pytest.raises(ConfigError, match="level"):
        TreeRetriever(shared_index, level=9)
    with pytest.raises(ConfigError, match="leevl"):
        PalmetteRetriever(shared_index).retrieve(PalmetteQuery(QUESTION, leevl=2))
    assert TreeRetriever.from_documents([], model).retrieve(QUESTION) == []


def test_a_retriever_of_another_method_is_refused(shared_index):
    class FieldsRetriever(PalmetteRetriever):
        method = "fields"

    with pytest.raises(ConfigError, match=r"FieldsRetriever takes 'fields' models.*'tree'"):
        FieldsRetriever(shared_index)


def test_model_from_a_folder_and_index_from_a_path(model, nodes, tmp_path):
    model.save_pretrained(tmp_path / "ckpt")
    first = PalmetteRetriever.from_documents(nodes, tmp_path / "ckpt", level=2)
    again = PalmetteRetriever.from_pretrained(
        tmp_path / "ckpt", nodes, index_path=tmp_path / "index", level=2
    )
    opened = TreeRetriever.from_index(tmp_path / "index", model=model, level=2)
    assert opened.index.model is model
    assert first.retrieve(QUESTION) == again.retrieve(QUESTION) == opened.retrieve(QUESTION)
    assert len(PalmetteRetriever.from_pretrained(tmp_path / "ckpt").index) == 0
    for retriever in (again, opened):
        retriever.index.close()


def test_documents_of_another_origin_become_text_nodes(model):
    index = Index.in_memory(model)
    index.add([Document(id="a", text="an owl", metadata={"lang": "en"})])
    [result] = TreeRetriever(index).retrieve("owl")
    assert isinstance(result.node, TextNode)
    assert (result.node_id, result.text, result.metadata) == ("a", "an owl", {"lang": "en"})
    index.upsert([Document(id="b", text="a bat")])
    assert TreeRetriever(index).upsert([result.node]).updated == ["a"]
    assert index.search("an owl", k=1)[0].document.text == "an owl"  # metadata stays out of the text


def test_index_nodes_lead_to_their_objects(model, retriever):
    inner = TextNode(id_="inner", text="the answer")
    nodes = [
        IndexNode(id_="a", text="an owl", index_id="stored", obj=inner),
        IndexNode(id_="b", text="a fox", index_id="live", obj=retriever),
        IndexNode(id_="c", text="a hen", index_id="given"),
    ]
    outer = TreeRetriever.from_documents(
        nodes, model, objects=[IndexNode(text="", index_id="given", obj=inner)]
    )
    assert nodes[1].obj is retriever  # the caller's node is not changed
    outer.similarity_top_k = 1
    assert ids(outer.retrieve("an owl")) == ids(outer.retrieve("a hen")) == ["inner"]
    assert ids(outer.retrieve("a fox")) == ids(retriever.retrieve("a fox"))


def test_a_score_of_zero_stays_low_for_index_nodes(model, retriever, monkeypatch):
    inner = TextNode(text="the answer")
    outer = TreeRetriever.from_documents([IndexNode(text="an owl", index_id="x", obj=inner)], model)
    search = type(outer.index).search

    def scoreless(self, *args, **options):
        from dataclasses import replace

        return [[replace(hit, score=0.0) for hit in hits] for hits in search(self, *args, **options)]

    monkeypatch.setattr(type(outer.index), "search", scoreless)
    [result] = outer.retrieve("an owl")
    assert result.score == math.ulp(0.0) < sys.float_info.epsilon
    assert retriever.retrieve("an owl")[0].score == 0.0


class Recorder(BaseEventHandler):
    seen: list

    @classmethod
    def class_name(cls):
        return "Recorder"

    def handle(self, event, **kwargs):
        self.seen.append(event)


@pytest.fixture
def events():
    root, recorder = get_dispatcher(), Recorder(seen=[])
    root.add_event_handler(recorder)
    yield recorder.seen
    root.event_handlers.remove(recorder)


async def test_events_and_callbacks_fire(shared_index, events):
    debug = LlamaDebugHandler(print_trace_on_end=False)
    retriever = TreeRetriever(shared_index, callback_manager=CallbackManager([debug]))
    retriever.retrieve(QUESTION)
    await retriever.aretrieve(QUESTION)
    retriever.retrieve_batch([QUESTION, "a fox"])
    await retriever.aretrieve_batch([QUESTION])
    names = [event.class_name() for event in events]
    assert names.count("RetrievalStartEvent") == names.count("RetrievalEndEvent") == 5
    pairs = debug.get_event_pairs(CBEventType.RETRIEVE)
    assert len(pairs) == 5
    assert all(len(end.payload["nodes"]) == 2 for _, end in pairs)


def test_a_failing_batch_ends_its_callbacks(shared_index):
    debug = LlamaDebugHandler(print_trace_on_end=False)
    retriever = TreeRetriever(shared_index, callback_manager=CallbackManager([debug]))
    with pytest.raises(InputError, match="empty"):
        retriever.retrieve_batch([QUESTION, " "])
    assert len(debug.get_event_pairs(CBEventType.RETRIEVE)) == 2


def test_prompts_mixin_works(retriever):
    assert retriever.get_prompts() == {}
    retriever.update_prompts({})


def test_numpy_embedding(retriever, model):
    vector = np.asarray(model.encoder.plain.encode_queries([QUESTION])[0])
    assert ids(retriever.retrieve(QueryBundle(QUESTION, embedding=vector))) == ids(
        retriever.retrieve(QUESTION)
    )
