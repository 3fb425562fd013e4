import copy
import pickle

import pytest
from llama_index.core.schema import IndexNode, TextNode
from llama_index.core.vector_stores import MetadataFilter, MetadataFilters

import palmette
from llama_index.retrievers.palmette import PalmetteEmbedding, PalmetteRerank, TreeRetriever
from palmette.errors import ConfigError, InputError

QUESTION = "where does the owl live in the forest"


def test_an_index_on_disk_is_persistent_already(on_disk, model):
    folder = on_disk.persist()
    again = TreeRetriever.from_persist_dir(folder)
    assert again.retrieve(QUESTION) == on_disk.retrieve(QUESTION)
    assert (again.level, again.similarity_top_k) == (3, 3)
    assert on_disk.persist(folder) == folder
    again.index.verify()
    again.index.close()


def test_memory_is_copied_to_a_folder(model, nodes, tmp_path):
    filters = MetadataFilters(filters=[MetadataFilter(key="year", value=2021, operator=">=")])
    retriever = TreeRetriever.from_documents(
        nodes, model, level=2, filters=filters, similarity_top_k=4, score_threshold=0.1, explain=True
    )
    with pytest.raises(InputError, match="in memory"):
        retriever.persist()
    folder = retriever.persist(tmp_path / "kept")
    again = TreeRetriever.from_persist_dir(folder, model=model)
    assert again.index.model is model
    assert again.settings() == retriever.settings()
    assert again.retrieve(QUESTION) == retriever.retrieve(QUESTION)
    changed = TreeRetriever.from_persist_dir(folder, model=model, similarity_top_k=1, filters=None)
    assert len(changed.retrieve(QUESTION)) == 1
    again.index.close()
    changed.index.close()


def test_persisting_elsewhere_copies_and_destroys_nothing(on_disk, tmp_path):
    folder = on_disk.persist(tmp_path / "copy")
    on_disk.delete_nodes(["owl-forest"])
    again = TreeRetriever.from_persist_dir(folder)
    assert "owl-forest" in again.index
    again.index.close()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/precious.txt").write_text("keep me")
    with pytest.raises(InputError, match="not an empty folder"):
        on_disk.persist(tmp_path / "full")
    assert [item.name for item in (tmp_path / "full").iterdir()] == ["precious.txt"]


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_copies_share_the_index(writable, on_disk, duplicate):
    with pytest.raises(ConfigError, match="index_path="):
        pickle.dumps(writable)
    for retriever in (writable, on_disk):
        retriever.filters = {"animal": {"$in": ["owl"]}}
        twin = duplicate(retriever)
        assert twin.retrieve(QUESTION) == retriever.retrieve(QUESTION)
        assert twin.index is retriever.index
        assert twin.callback_manager is retriever.callback_manager
        if duplicate is copy.deepcopy:
            twin.filters["animal"]["$in"].append("fox")
            twin.object_map["live"] = object()
            assert retriever.object_map == {}
        twin.similarity_top_k, twin.filters, twin.level = 1, None, 2
        assert len(twin.retrieve(QUESTION)) == 1
        assert (retriever.similarity_top_k, retriever.filters) == (3, {"animal": {"$in": ["owl"]}})
        assert retriever.level != 2


def test_a_pickle_keeps_its_tenant(on_disk, model, tmp_path):
    tenant = TreeRetriever(on_disk.index.filtered({"animal": "fox"}), similarity_top_k=100)
    again = pickle.loads(pickle.dumps(tenant))
    assert {r.node.metadata["animal"] for r in again.retrieve(QUESTION)} == {"fox"}
    again.index.close()
    with pytest.raises(InputError, match="a part of the index"):
        tenant.persist()
    part = TreeRetriever.from_persist_dir(tenant.persist(tmp_path / "part"), model=model)
    assert {document.metadata["animal"] for document in part.index.documents()} == {"fox"}
    part.index.close()


def test_what_index_nodes_lead_to_is_given_again(model, tmp_path):
    inner = TreeRetriever.from_documents([TextNode(id_="inner", text="the answer")], model)
    node = IndexNode(text="an owl", index_id="live", obj=inner)
    folder = TreeRetriever.from_documents([node], model, index_path=tmp_path / "index").persist()
    bare = TreeRetriever.from_persist_dir(folder, model=model, engine="exact")
    assert [type(r.node) for r in bare.retrieve("an owl")] == [IndexNode]
    full = TreeRetriever.from_persist_dir(folder, model=model, object_map={"live": inner})
    assert [r.node_id for r in full.retrieve("an owl")] == ["inner"]


def test_embedding_and_reranker_are_reloaded(model, tmp_path, retriever, monkeypatch):
    loaded, load_model = [], palmette.load_model

    def record(*args, **options):
        loaded.append(load_model(*args, **options))
        return loaded[-1]

    monkeypatch.setattr(palmette, "load_model", record)
    folder, nodes = model.save_pretrained(tmp_path / "ckpt"), retriever.retrieve(QUESTION)
    embeds = {"embed_batch_size": 7}
    ranks = {"top_n": 1, "lexical": 0.25, "level": 2}
    for saved in (PalmetteEmbedding(folder, **embeds), PalmetteRerank(folder, **ranks), PalmetteRerank(folder)):
        cls = type(saved)
        for again in (
            pickle.loads(pickle.dumps(saved)),
            cls.from_dict(saved.to_dict()),
            cls.from_json(saved.to_json()),
        ):
            assert again.to_dict() == saved.to_dict()
    assert len(loaded) == 12
    assert all(each is loaded[0] for each in loaded), "copies share the model"
    embedding, rerank = PalmetteEmbedding(folder, **embeds), PalmetteRerank(folder, **ranks)
    assert (embedding.embed_batch_size, rerank.lexical) == (7, 0.25)
    assert embedding.get_text_embedding("owl") == PalmetteEmbedding(model, **embeds).get_text_embedding("owl")
    ranked = pickle.loads(pickle.dumps(rerank)).postprocess_nodes(nodes, query_str="fox")
    assert ranked == PalmetteRerank(model, **ranks).postprocess_nodes(nodes, query_str="fox")
    assert PalmetteRerank.from_dict(rerank.to_dict(), top_n=7).top_n == 7
    for unsaved in (PalmetteEmbedding(model), PalmetteRerank(model)):
        for use in (lambda: pickle.dumps(unsaved), lambda: type(unsaved).from_dict(unsaved.to_dict())):  # noqa: B023
            with pytest.raises(ConfigError, match="save it"):
                use()
        loads = len(loaded)
        assert type(unsaved).from_dict(unsaved.to_dict(), model=model).to_dict() == unsaved.to_dict()
        assert len(loaded) == loads, "the given model is used"
