"""The contract of Index, run over every method (each row of METHODS makes a trained model)."""

import asyncio
import threading
from collections.abc import Callable

import numpy as np
import pytest

from palmette import Document, FakeEncoder, Index, Model, TreeModel
from palmette.encoder.base import States
from palmette.errors import (
    ConfigError,
    DuplicateIdError,
    EncodingError,
    FilterError,
    InputError,
    ModelMismatchError,
    NotFoundError,
    PalmetteError,
)
from palmette.registry import FUSION, names
from support.tiny import ANIMALS, COLOURS, documents, fields, fusion, layers, paths, taxonomy, tree

METHODS: dict[str, Callable[[], Model]] = {
    "fields": fields,
    "fusion": fusion,
    "layers": layers,
    "paths": paths,
    "taxonomy": taxonomy,
    "tree": tree,
}


def test_every_method_is_under_contract() -> None:
    assert sorted(METHODS) == sorted([*names(), *FUSION])


@pytest.fixture(params=sorted(METHODS))
def model(request: pytest.FixtureRequest) -> Model:
    return METHODS[request.param]()


@pytest.fixture(params=["memory", "folder"])
def index(request: pytest.FixtureRequest, model: Model, tmp_path) -> Index:
    made = Index.in_memory(model) if request.param == "memory" else Index.create(tmp_path / "index", model)
    made.add(documents())
    return made


QUERIES = ["where does the red owl live?", "white hen", "golden bee sings"]


def test_hits_are_ranked_documents(index: Index) -> None:
    hits = index.search(QUERIES[0], k=7)
    assert len(hits) == 7
    assert [type(hit.score) for hit in hits] == [float] * 7
    assert all(a.score >= b.score for a, b in zip(hits, hits[1:], strict=False))
    assert len({hit.id for hit in hits}) == 7
    original = {document.id: document for document in documents()}
    assert all(hit.document == original[hit.id] for hit in hits)
    assert "red-owl" in [hit.id for hit in hits]


def test_a_batch_is_the_single_searches(index: Index) -> None:
    batched = index.search(QUERIES, k=5)
    for query, hits in zip(QUERIES, batched, strict=True):
        alone = index.search(query, k=5)
        assert [hit.id for hit in alone] == [hit.id for hit in hits]
        assert [hit.score for hit in alone] == pytest.approx([hit.score for hit in hits], abs=1e-5)
    assert index.search([], k=5) == []


def test_ranking_is_the_search_without_documents(index: Index) -> None:
    ranking = index.rank(QUERIES, k=5, filter={"house": {"$lt": 24}})
    hits = index.search(QUERIES, k=5, filter={"house": {"$lt": 24}})
    assert ranking.ids == [[hit.id for hit in found] for found in hits]
    assert ranking.scores == [[hit.score for hit in found] for found in hits]
    assert 0 < ranking.visited <= 1
    assert index.rank([]).ids == []


def test_the_parts_of_an_explanation_add_up_to_the_score(index: Index) -> None:
    for hit in [hit for hits in index.search(QUERIES, k=48) for hit in hits]:
        explanation = hit.explain()
        assert sum(part.value for part in explanation.parts) == pytest.approx(hit.score, abs=1e-5)
        assert explanation.score == pytest.approx(hit.score, abs=1e-5)
        assert explanation.text
    explained = index.explain(QUERIES[0], "red-owl")
    assert explained.score == pytest.approx(
        {h.id: h.score for h in index.search(QUERIES[0], k=48)}["red-owl"], abs=1e-5
    )


def test_k_is_honoured(index: Index) -> None:
    assert len(index.search("owl", k=1)) == 1
    assert len(index.search("owl", k=10_000)) == 48
    for k in (0, -3, 2.5, True, "5"):
        with pytest.raises(InputError, match="k must be a whole number"):
            index.search("owl", k=k)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ({"colour": "red"}, lambda m: m["colour"] == "red"),
        ({"house": {"$gte": 40}}, lambda m: m["house"] >= 40),
        (
            {"animal": {"$in": ["cat", "hen"]}, "colour": {"$ne": "blue"}},
            lambda m: m["animal"] in ("cat", "hen") and m["colour"] != "blue",
        ),
        ({"$or": [{"animal": "ant"}, {"house": 3}]}, lambda m: m["animal"] == "ant" or m["house"] == 3),
        ({"$not": {"colour": {"$in": list(COLOURS[:5])}}}, lambda m: m["colour"] == "golden"),
        ({"tags": {"$all": ["black", "fox"]}}, lambda m: set(m["tags"]) >= {"black", "fox"}),
    ],
)
def test_filters_are_applied_before_ranking(
    index: Index, condition: dict, expected: Callable[[dict], bool]
) -> None:
    wanted = {d.id for d in documents() if expected(d.metadata)}
    found = index.search("a golden owl", k=48, filter=condition)
    assert {hit.id for hit in found} == wanted
    unfiltered = [hit.id for hit in index.search("a golden owl", k=48) if hit.id in wanted]
    assert [hit.id for hit in found] == unfiltered
    few = index.search("a golden owl", k=2, filter=condition)
    assert [hit.id for hit in few] == unfiltered[:2]


def test_a_filter_that_nothing_passes_finds_nothing_and_an_unknown_key_says_so(index: Index) -> None:
    assert index.search("owl", filter={"house": 999}) == []
    with pytest.raises(FilterError, match=r"color.*colour"):
        index.search("owl", filter={"color": "red"})
    with pytest.raises(FilterError, match=r"\$bigger"):
        index.search("owl", filter={"house": {"$bigger": 3}})


def test_a_narrowed_index_cannot_be_widened(index: Index) -> None:
    red = index.narrowed({"colour": "red"})
    assert len(red) == len(ANIMALS)
    assert {hit.document.metadata["colour"] for hit in red.search("blue owl", k=48)} == {"red"}
    assert red.search("blue owl", k=48, filter={"colour": "blue"}) == []
    assert [d.id for d in red.documents({"animal": "owl"})] == ["red-owl"]
    assert red.get(["blue-owl"]) == [None]
    assert "blue-owl" not in red
    with pytest.raises(NotFoundError):
        red.explain("owl", "blue-owl")
    assert red.delete(["blue-owl"]) == []
    assert len(index) == 48
    with pytest.raises(PalmetteError, match="colour"):
        red.add([Document(id="x", text="x", metadata={"colour": "blue"})])
    assert red.delete(filter={"animal": "owl"}) == ["red-owl"]
    assert len(index) == 47


def test_threshold_leaves_weak_hits_out(index: Index) -> None:
    hits = index.search("red owl", k=48)
    cut = hits[9].score
    assert [h.id for h in index.search("red owl", k=48, threshold=cut)] == [
        h.id for h in hits if h.score >= cut
    ]
    assert index.search("red owl", threshold=1e9) == []


def test_adding_twice_changes_nothing_and_other_text_is_refused(index: Index) -> None:
    before = index.search("red owl", k=48)
    assert index.add(documents()) == [d.id for d in documents()]
    assert len(index) == 48
    assert index.search("red owl", k=48) == before
    with pytest.raises(DuplicateIdError, match=r"'red-owl'.*upsert"):
        index.add([Document(id="new", text="new"), Document(id="red-owl", text="another text")])
    with pytest.raises(DuplicateIdError, match="given twice"):
        index.add([Document(id="twin", text="one"), Document(id="twin", text="two")])
    assert len(index) == 48, "nothing of a refused add is kept"
    assert index.get(["new", "twin"]) == [None, None]


def test_upsert_replaces_what_changed_and_only_that(index: Index) -> None:
    stale = next(h for h in index.search("where does the red owl live?", k=48) if h.id == "red-owl")
    changed = Document(
        id="red-owl", text="A submarine dives under the polar ice.", metadata={"colour": "red"}
    )
    changes = index.upsert(
        [*documents()[:2], *documents()[3:], changed, Document(id="new", text="brand new")]
    )
    assert (changes.added, changes.updated, len(changes.unchanged)) == (["new"], ["red-owl"], 47)
    assert index.get(["red-owl"]) == [changed]
    assert index.search("submarine under the polar ice", k=1)[0].id == "red-owl"
    assert len(index) == 49
    with pytest.raises(NotFoundError, match="search again"):
        stale.explain()


def test_upsert_and_delete_in_one_transaction(index: Index) -> None:
    changes = index.upsert(["brand new text"], delete=["red-owl", "nobody"])
    assert (len(changes.added), changes.deleted) == (1, ["red-owl"])
    assert len(index) == 48
    kept = index.upsert([documents()[0]], delete=["red-cat"])
    assert (kept.unchanged, kept.deleted) == (["red-cat"], []), "what is given stays"


def test_explanations_made_at_once_outlive_the_document(index: Index) -> None:
    hits = index.search("red owl", k=3, explain=True)
    index.delete([hit.id for hit in hits])
    for hit in hits:
        assert sum(part.value for part in hit.explain().parts) == pytest.approx(hit.score, abs=1e-5)


def test_build_is_memory_or_folder_and_brings_up_to_date(model: Model, tmp_path) -> None:
    assert len(Index.build(documents(), model)) == 48
    with pytest.raises(DuplicateIdError):
        Index.build([Document(id="a", text="1"), Document(id="a", text="2")], model, tmp_path / "i")
    assert list(tmp_path.iterdir()) == [], "refused before there is a folder"
    Index.build(documents()[:40], model, tmp_path / "i").close()
    again = Index.build(documents(), model, tmp_path / "i")
    assert len(again) == 48
    assert (again.path, again.engine) == (tmp_path / "i", "exact")
    assert Index.build(["x"], model).path is None


def test_an_index_names_its_engine(model: Model, tmp_path) -> None:
    pytest.importorskip("faiss")
    made = Index.build(["x"], model, tmp_path / "i", engine="faiss")
    for index in (made, made.narrowed({"$id": ["x"]}), Index.open(tmp_path / "i", engine="faiss")):
        assert index.engine == "faiss"


def test_documents_of_one_content_score_the_same(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit: they are encoded once, not in several places of a batch."""
    encoded, encode = [], type(model).encode_documents
    monkeypatch.setattr(
        type(model), "encode_documents", lambda self, some: encoded.extend(some) or encode(self, some)
    )
    alike = [Document(id=str(i), text="an owl", metadata={"page": i}) for i in range(6)]
    first, *same, last = model.score("white owl", [documents()[0], *alike, documents()[0]])
    assert len(encoded) == 2
    assert first == last
    assert len({*same}) == 1
    assert first != same[0]


def test_vectors_are_for_other_stores(model: Model) -> None:
    vectors = model.vectors(["red owl", "white hen"])
    assert vectors.shape[0] == 2
    assert vectors.dtype == np.float32
    assert np.isfinite(vectors).all()
    with pytest.raises(ConfigError, match="'levle'"):
        model.vectors(["x"], levle=3)


def test_delete_is_idempotent_and_by_filter(index: Index) -> None:
    assert index.delete(["red-owl", "nobody", "red-owl"]) == ["red-owl"]
    assert index.delete(["red-owl"]) == []
    assert "red-owl" not in [hit.id for hit in index.search("red owl", k=48)]
    gone = index.delete(filter={"animal": "hen"})
    assert sorted(gone) == sorted(f"{colour}-hen" for colour in COLOURS)
    assert len(index) == 48 - 1 - len(COLOURS)
    kept = index.search("owl", k=48)
    index.compact()
    assert index.search("owl", k=48) == kept
    assert index.stats().reclaimable == 0
    with pytest.raises(InputError, match="ids or a filter"):
        index.delete()


def test_an_emptied_index_still_answers(index: Index) -> None:
    index.delete([d.id for d in documents()])
    assert len(index) == 0
    assert index.search("owl") == []
    index.compact()
    assert index.search("owl", filter={"colour": "red"}) == []
    assert index.search("where does the owl live?", lexical=0.5) == []
    index.add([documents()[0]])
    assert [hit.id for hit in index.search("owl")] == ["red-cat"]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("", "empty"),
        (" \n\t", "empty"),
        (3, "got int"),
        (["ok", ""], "empty"),
        (["ok", None], "must be a str, got NoneType"),
    ],
)
def test_unusable_queries_are_refused(index: Index, query: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        index.search(query)


def test_unusable_documents_are_refused_and_lose_nothing(index: Index) -> None:
    for bad, words in [
        ([Document(id="fine", text="fine"), {"txt": "a dict"}], "document 1: .*'text'"),
        (["fine", "  "], "document 1: .*empty"),
        ({"text": "a"}, "write \\[document\\]"),
        (Document(id="one", text="one"), "write \\[document\\]"),
        (None, "got one NoneType"),
        ([3], "document 0: cannot make a document of int"),
        ([Document(id="n", text="x", metadata={"bad": float("inf")})], "JSON values only"),
    ]:
        with pytest.raises(InputError, match=words):
            index.add(bad)
    assert len(index) == 48
    assert index.add([]) == []
    with pytest.raises(NotFoundError, match=r"no file or folder 'one text'"):
        index.add("one text")
    for call, words in [
        (lambda: index.add(["x"], batch_size=0), "batch_size"),
        (lambda: index.get("red-owl"), r"write \['red-owl'\]"),
        (lambda: index.get(5), "ids must be a list of str, got int"),
        (lambda: index.delete(None, filter={}), "an empty filter would delete every document"),
        (lambda: index.search("owl", threshold="high"), "threshold must be a number"),
        (lambda: index.search("owl", threshold=float("nan")), "threshold must be a number"),
        (lambda: index.search(np.array(["a", "b"])), "list of str"),
        (lambda: Index.in_memory(3), "a model must be a Model"),
        (lambda: Index.create("", index.model), "a path must be"),
    ]:
        with pytest.raises(InputError, match=words):
            call()
    assert len(index) == 48


def test_documents_of_many_kinds_and_a_model_by_its_folder(model: Model, tmp_path) -> None:
    model.save_pretrained(tmp_path / "ckpt")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "owl.md").write_text("# Owls\n\nThe red owl sings.")
    index = Index.build(tmp_path / "notes", tmp_path / "ckpt")
    index.add([{"id": "d", "text": "a dict", "lang": "en"}, "a text"])
    assert [hit.id for hit in index.search("the red owl sings", k=1)] == ["owl.md"]
    assert index.get(["d"])[0].metadata == {"lang": "en"}


def test_changing_the_working_directory_changes_nothing(model: Model, tmp_path, monkeypatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    first = Index.build(["alpha one"], model, "idx")
    monkeypatch.chdir(tmp_path / "b")
    Index.build(["beta one"], model, "idx").close()
    first.add(["alpha two"])
    first.compact()
    assert len(first) == 2
    with Index.open("idx", model) as second:
        second.verify()
        assert [d.text for d in second.documents()] == ["beta one"]
    with Index.open(tmp_path / "a" / "idx", model) as again:
        assert len(again) == 2


def test_a_pickled_index_is_its_folder(model: Model, tmp_path) -> None:
    import pickle

    index = Index.build(documents(), model, tmp_path / "i")
    copy = pickle.loads(pickle.dumps(index.narrowed({"colour": "red"})))
    assert [h.id for h in copy.search("owl", k=48)] == [
        h.id for h in index.search("owl", k=48, filter={"colour": "red"})
    ]
    with pytest.raises(PalmetteError, match="copy_to"):
        pickle.dumps(Index.in_memory(model))


def test_a_huge_document_is_stored_whole(index: Index) -> None:
    text = "elephant " + "words and more words " * 200_000
    index.add([Document(id="huge", text=text)])
    assert index.get(["huge"])[0].text == text
    assert index.search("elephant words and more words", k=1)[0].id == "huge"


def test_an_encoder_that_returns_nan_loses_nothing(model: Model) -> None:
    class Broken(FakeEncoder):
        broken = False

        def forward(self, texts, kind, outputs) -> States:
            states = super().forward(texts, kind, outputs)
            if self.broken and any("poison" in text for text in texts):
                states.pooled[0] = float("nan")
            return states

    encoder = Broken(48)
    made = Index.in_memory(
        TreeModel.fit(
            [("a", "b c"), ("d", "e f"), ("g", "h")], encoder=encoder, depth=2, steps=1, batch_size=2
        )
    )
    made.add(["a text", "another"])
    encoder.broken = True
    with pytest.raises(EncodingError, match="poison"):
        made.add(["more", "the poison", "still more"])
    with pytest.raises(EncodingError):
        made.search("poison")
    assert len(made) == 2


def test_embeddings_can_be_searched_with(index: Index, model: Model) -> None:
    vectors = model.encoder.encode_queries(QUERIES)
    try:
        found = index.search(vectors, k=3)
    except ConfigError:
        pytest.skip(f"{model.method} needs the text itself")
    assert [[h.id for h in hits] for hits in found] == [
        [h.id for h in hits] for hits in index.search(QUERIES, k=3, lexical=0)
    ]
    with pytest.raises(InputError, match=r"\[Q, 48\]"):
        index.search(vectors[:, :7])
    with pytest.raises(InputError, match="finite"):
        index.search(np.full((1, 48), np.nan))


def test_an_index_reopens_as_it_was(model: Model, tmp_path) -> None:
    with Index.create(tmp_path / "i", model) as made:
        made.add(documents())
        made.delete(["red-cat"])
        expected = made.search(QUERIES, k=10)
    for given in (None, model):
        with Index.open(tmp_path / "i", given) as opened:
            assert opened.model.fingerprint == model.fingerprint
            assert opened.search(QUERIES, k=10) == expected
            assert opened.stats().documents == 47
            if given is None:
                opened.copy_to(tmp_path / "again").close()
    with Index.open(tmp_path / "again") as copy:
        assert copy.model.fingerprint == model.fingerprint, "a model that was loaded is saved as it was"


def test_an_index_refuses_another_model_and_folders_in_use(model: Model, tmp_path) -> None:
    Index.create(tmp_path / "i", model).close()
    other = TreeModel.fit(
        [("a", "b c"), ("d", "e f"), ("g", "h")], encoder=FakeEncoder(8), depth=2, steps=1, batch_size=2
    )
    with pytest.raises(ModelMismatchError):
        Index.open(tmp_path / "i", other)
    with pytest.raises(InputError, match=r"Index\.open it"):
        Index.create(tmp_path / "i", model)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="not an empty folder"):
        Index.create(tmp_path / "mine", model)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"
    with pytest.raises(NotFoundError):
        Index.open(tmp_path / "nowhere")
    other.save_pretrained(tmp_path / "i" / "model")
    with pytest.raises(ModelMismatchError, match="restore that folder"):
        Index.open(tmp_path / "i")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["i", "mine"]


def test_unusable_places_and_options_are_refused(model: Model, tmp_path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="file is a file"):
        Index.create(tmp_path / "file" / "index", model)
    for engine in ("annoy", None):
        with pytest.raises(ConfigError, match="engine"):
            Index.create(tmp_path / "i", model, engine=engine)  # type: ignore[arg-type]
    assert not (tmp_path / "i").exists(), "a wrong engine leaves no folder behind"
    Index.create(tmp_path / "i", model).close()
    with pytest.raises(InputError, match="batch_size"):
        Index.open(tmp_path / "i", model).copy_to(tmp_path / "copy", batch_size=0)
    with pytest.raises(ConfigError, match=r"device.*a model is given"):
        Index.open(tmp_path / "i", model, device="cpu")
    Index.open_or_create(tmp_path / "new", model, verify=False, lock_timeout=1.0).close()
    with pytest.raises(InputError, match="finite and"):
        Index.open(tmp_path / "i", model).explain(np.empty((0, 48), np.float32), "x")


def test_small_changes_do_not_hold_the_lock_while_they_encode(model: Model, tmp_path, monkeypatch) -> None:
    index = Index.create(tmp_path / "i", model, lock_timeout=0.2)
    encoding, go_on = threading.Event(), threading.Event()
    original = type(model).encode_documents

    def slow(self, batch):
        if any("slow" in document.text for document in batch):
            encoding.set()
            assert go_on.wait(30)
        return original(self, batch)

    monkeypatch.setattr(type(model), "encode_documents", slow)
    refused: list[Exception] = []

    def add_slowly() -> None:
        try:
            index.add([Document(id="s", text="slow one")])
        except DuplicateIdError as error:
            refused.append(error)

    adding = threading.Thread(target=add_slowly)
    adding.start()
    assert encoding.wait(30)
    index.add([Document(id="q", text="quick one"), Document(id="s", text="its id")])  # no LockedError
    go_on.set()
    adding.join()
    assert index.get(["q", "s"])[1].text == "its id"
    assert len(refused) == 1, "the decision was made again under the lock"


def test_index_and_checkpoint_are_not_confused(model: Model, tmp_path) -> None:
    from palmette import load_model
    from palmette.errors import CheckpointError

    model.save_pretrained(tmp_path / "ckpt")
    Index.create(tmp_path / "i", model).close()
    with pytest.raises(InputError, match="is a checkpoint, not an index"):
        Index.open(tmp_path / "ckpt")
    with pytest.raises(CheckpointError, match=r"is an index: use Index\.open"):
        load_model(tmp_path / "i")
    assert load_model(tmp_path / "i" / "model").fingerprint == model.fingerprint


def test_a_failed_copy_leaves_nothing(index: Index, tmp_path, monkeypatch) -> None:
    def fail(self, path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(index.model), "save_pretrained", fail)
    with pytest.raises(PalmetteError, match="no room"):
        index.copy_to(tmp_path / "copy")
    assert [p.name for p in tmp_path.iterdir() if p.name != "index"] == []


def test_a_copy_answers_as_the_original(index: Index, tmp_path) -> None:
    copy = index.copy_to(tmp_path / "copy")
    assert copy.search(QUERIES, k=48) == index.search(QUERIES, k=48)
    red = index.narrowed({"colour": "red"}).copy_to(tmp_path / "red")
    assert len(red) == len(ANIMALS)
    copy.delete(["red-owl"])
    assert "red-owl" in index


def test_readers_in_threads_see_whole_states(index: Index) -> None:
    """Documents come and go in groups of eight; no search may see part of a group."""
    stop, torn = threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            seen = len(index.search("extra", k=100, filter={"batch": {"$exists": True}}))
            if seen not in (0, 8):
                torn.append(seen)

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    group = [Document(id=f"extra-{i}", text=f"extra {i}", metadata={"batch": 1}) for i in range(8)]
    for _ in range(6):
        index.add(group)
        index.delete([d.id for d in group])
    stop.set()
    for reader in readers:
        reader.join()
    assert torn == []


async def test_async_searches_run_side_by_side(index: Index) -> None:
    expected = [index.search(query, k=3) for query in QUERIES]
    found = await asyncio.gather(*(index.asearch(query, 3) for query in QUERIES * 8))
    if index.model.method not in ("fields", "layers"):
        assert found == expected * 8
        return
    for hits, alone in zip(
        found, expected * 8, strict=True
    ):  # a transformer of theirs: a shared pass rounds otherwise
        assert [hit.id for hit in hits] == [hit.id for hit in alone]
        assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in alone], abs=1e-5)


def test_reranking_without_an_index_scores_the_same(index: Index, model: Model) -> None:
    given = documents()[5:15]
    by_id = {hit.id: hit.score for hit in index.search("white owl", k=48, lexical=0)}
    assert model.score("white owl", given) == pytest.approx([by_id[d.id] for d in given], abs=1e-5)
    assert model.score("white owl", []) == []


# -- words and structure together ---------------------------------------------------------------------------


def test_a_hybrid_search_is_exact(index: Index, model: Model) -> None:
    """The same as mixing both scores of every document: 900 documents, so that neither side shows all at first."""
    index.add(
        Document(id=f"more-{i}", text=f"{COLOURS[i % 6]} thing {i % 50} of {ANIMALS[i % 7]} {i % 3}")
        for i in range(852)
    )
    index.delete([f"more-{i}" for i in range(0, 852, 9)])
    how = {"by": "best"} if model.method == "fields" else {}  # its default ranks a shortlist alone
    for lexical in (0.3, 0.9, 1):
        found = index.search(QUERIES, k=5, lexical=lexical, **how)
        for query, hits in zip(QUERIES, found, strict=True):
            expected = mixed_by_hand(index, model, query, lexical, **how)
            assert [hit.id for hit in hits] == [id for id, _ in expected[:5]]
            assert [hit.score for hit in hits] == pytest.approx(
                [score for _, score in expected[:5]], abs=1e-6
            )
            alone = index.search(query, k=5, lexical=lexical, **how)
            assert [hit.id for hit in alone] == [hit.id for hit in hits]


def mixed_by_hand(
    index: Index, model: Model, query: str, lexical: float, **how: str
) -> list[tuple[str, float]]:
    pure = index.rank([query], k=10_000, lexical=0, **how)
    scale = model.mix(model.options(how), lexical).scale
    with index.backend.read() as view:
        keys = [view.key_of(id) for id in pure.ids[0]]
        words = view.shared(query, keys).scores
    rows = [
        (-((1 - lexical) * own + lexical * scale * float(word) ** 1.5), -own, key, id)
        for own, word, key, id in zip(pure.scores[0], words, keys, pure.ids[0], strict=True)
    ]
    return [(id, -score) for score, _, _, id in sorted(rows)]


def test_without_words_a_search_is_the_pure_method(index: Index, model: Model) -> None:
    pure = index.search(QUERIES, k=48, lexical=0)
    with index.backend.read() as view:
        options = model.options({})
        found = model.search(view, model.encode_queries(QUERIES, options), 48, options)
        assert [[hit.id for hit in hits] for hits in pure] == [view.ids(row.tolist()) for row in found.keys]
    assert [[hit.score for hit in hits] for hits in pure] == found.scores.tolist()


def test_words_find_what_only_words_can(index: Index) -> None:
    index.add([Document(id="part", text="Order code dv7-1211ea, nothing else."), "An order without a code."])
    for query in ("dv7-1211ea", "DV7 1211EA", "code of dv7-1211ea?"):
        assert index.search(query, k=1, lexical=0.9)[0].id == "part"
    assert index.search("dv7-1211ea", k=48, lexical=1, threshold=1e-6)[0].id == "part"
    assert len(index.search("dv7-1211ea", k=48, lexical=1, threshold=1e-6)) == 1


def test_the_parts_of_a_hybrid_explanation_add_up_and_name_the_words(index: Index) -> None:
    found = index.search(QUERIES, k=48, lexical=0.5)
    index.add(["another red owl that makes the words less rare", "and one more owl"])
    for hit in [hit for hits in found for hit in hits]:
        explanation = hit.explain()
        assert sum(part.value for part in explanation.parts) == pytest.approx(hit.score, abs=1e-5)
        assert explanation.score == pytest.approx(hit.score, abs=1e-5)
    explained = index.explain(QUERIES[0], "red-owl", lexical=0.5)
    assert {"word 'red'", "word 'owl'"} <= {part.name for part in explained.parts}
    assert "red" in explained.text
    assert set(explained.detail["lexical"]["words"]) >= {"red", "owl"}
    again = index.search(QUERIES[0], k=48, lexical=0.5)
    assert explained.score == pytest.approx({h.id: h.score for h in again}["red-owl"], abs=1e-5)


def test_hybrid_searches_are_filtered_and_ranked_alike(index: Index) -> None:
    condition = {"house": {"$lt": 24}}
    hits = index.search(QUERIES, k=7, filter=condition, lexical=0.6)
    everything = index.search(QUERIES, k=48, lexical=0.6)
    for some, every in zip(hits, everything, strict=True):
        within = [(h.id, h.score) for h in every if h.document.metadata["house"] < 24]
        assert [(h.id, h.score) for h in some] == within[:7]
    ranking = index.rank(QUERIES, k=7, filter=condition, lexical=0.6)
    assert ranking.ids == [[hit.id for hit in found] for found in hits]
    red = index.narrowed({"colour": "red"})
    assert {h.document.metadata["colour"] for h in red.search("blue owl", k=48, lexical=1)} == {"red"}


def test_words_follow_every_change(index: Index, tmp_path) -> None:
    def best(query: str) -> list[str]:
        return [hit.id for hit in index.search(query, k=48, lexical=1, threshold=1e-6)]

    assert best("submarine") == []
    index.upsert([Document(id="red-owl", text="A submarine dives.", metadata={"colour": "red"})])
    assert best("submarines") == ["red-owl"]
    assert "red-owl" not in best("owl")
    index.delete(["red-owl"])
    assert best("submarine") == []
    kept = index.search(QUERIES, k=48, lexical=0.5)
    index.compact()
    assert index.search(QUERIES, k=48, lexical=0.5) == kept
    copy = index.copy_to(tmp_path / "copy")
    assert copy.search(QUERIES, k=48, lexical=0.5) == kept


def test_a_weight_that_cannot_be_is_refused(index: Index, model: Model) -> None:
    for lexical in (-0.1, 1.5, "much", True, None, float("nan")):
        with pytest.raises(ConfigError, match="lexical must be a number from 0"):
            index.search("owl", lexical=lexical)
    vectors = model.encoder.encode_queries(["red owl"])
    with pytest.raises(ConfigError, match="needs the words of a query"):
        index.search(vectors, lexical=0.5)


def test_the_language_of_words_is_kept(model: Model, tmp_path) -> None:
    texts = ["Das Haus steht.", "Viele Häuser stehen.", "Ein Boot."]
    index = Index.build(texts, model, tmp_path / "i", language="german")
    assert len(index.search("haus", k=3, lexical=1, threshold=1e-6)) == 2
    index.close()
    for opened in (Index.open(tmp_path / "i"), Index.open_or_create(tmp_path / "i", model)):
        assert opened.backend.language == "german"
    plain = Index.build(["one house", "two houses"], model, language=None)
    assert len(plain.search("house", k=3, lexical=1, threshold=1e-6)) == 1
    with pytest.raises(ConfigError, match="no stemmer for language='klingon'"):
        Index.create(tmp_path / "k", model, language="klingon")
