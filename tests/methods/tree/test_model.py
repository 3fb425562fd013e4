import numpy as np
import pytest
import torch

from palmette import Document, FakeEncoder, Index, TreeModel, load_model
from palmette.errors import CheckpointError, ConfigError, InputError, ModelMismatchError, TrainingError
from palmette.search.fixed import as_floats
from support.tiny import documents, pairs, train_tree, tree


@pytest.fixture(scope="module")
def index() -> Index:
    made = Index.in_memory(tree())
    made.add(documents())
    return made


@pytest.mark.parametrize("level", [None, 1, 2, 3, 4, 5])
def test_search_is_the_full_scan_at_every_level(index: Index, level: int | None) -> None:
    model, asked = tree(), ["where is the red owl?", "a golden hen"]
    found = index.search(asked, lexical=0, k=48, level=level)
    h = level or 5
    q = model.encode_queries(asked, model.options({}))["leaves"].reshape(2, 2**h, -1).sum(-1)
    d = as_floats(model.encode_documents(documents())["leaves"]).reshape(48, 2**h, -1).sum(-1)
    expected = np.minimum(q[:, None], d[None]).sum(-1)  # [2, 48]
    for row, hits in enumerate(found):
        by_id = {document.id: score for document, score in zip(documents(), expected[row], strict=True)}
        assert [hit.score for hit in hits] == pytest.approx(sorted(by_id.values(), reverse=True), abs=1e-5)
        assert {hit.id: hit.score for hit in hits} == pytest.approx(by_id, abs=1e-5)


def test_a_path_is_explained_from_the_root_down(index: Index) -> None:
    hit = index.search("where does the blue fox live?", lexical=0, k=1)[0]
    explanation = hit.explain()
    path = explanation.detail["path"]
    assert len(path) == 5
    assert set(path) <= {"L", "R"}
    assert [step["node"] for step in explanation.detail["nodes"]] == [path[: n + 1] for n in range(5)]
    for side in ("query", "document"):
        reached = [step[side] for step in explanation.detail["nodes"]]
        assert all(a >= b for a, b in zip(reached, reached[1:], strict=False)), (
            "a child is never likelier than its parent"
        )
    assert len(explanation.parts) == 6
    assert path in explanation.text
    first, *others = explanation.detail["places"]
    for place in (first, *others):
        assert min(place["query"], place["document"]) > place["even"] == 2.0 ** -len(place["node"])
        assert place["topic"][0] in explanation.text
    assert not any(other["node"].startswith(first["node"]) for other in others), (
        "nodes under each other say it twice"
    )
    assert len(index.explain("where does the blue fox live?", hit.id, lexical=0, level=3).detail["path"]) == 3


def test_vectors_of_a_level_and_their_roots() -> None:
    model, texts = tree(), ["red owl", "golden bee"]
    for level in (1, 3, 5):
        nodes = model.vectors(texts, level=level)
        assert nodes.shape == (2, 2**level)
        np.testing.assert_allclose(nodes.sum(1), 1, atol=1e-5)
        roots = model.vectors(texts, level=level, sqrt=True)
        assert np.minimum(nodes[0], nodes[1]).sum() <= roots[0] @ roots[1] + 1e-6
        assert model.vectors([], level=level).shape == (0, 2**level)
    assert np.array_equal(
        model.vectors(texts, kind="query"), model.encode_queries(texts, model.options({}))["leaves"]
    )


def test_auto_is_the_smallest_level_that_is_good_enough(index: Index) -> None:
    table = [index.model.record.metrics[f"ndcg@10 at level {level}"] for level in range(1, 6)]
    assert len(set(table)) > 1, "a table of equal values would tell nothing"
    for tolerance in (0.0, 0.1, 0.5, 1.0):
        wanted = next(at for at, value in enumerate(table, 1) if value >= (1 - tolerance) * max(table))
        chosen = index.model.options({"level": "auto", "tolerance": tolerance})
        assert index.model.level(chosen) == wanted
        for asked in ("red owl", "a bee"):
            auto = index.search(asked, lexical=0, k=48, level="auto", tolerance=tolerance)
            assert [(h.id, h.score) for h in auto] == [
                (h.id, h.score) for h in index.search(asked, lexical=0, k=48, level=wanted)
            ]
            assert len(auto[0].explain().detail["path"]) == wanted


def test_auto_needs_a_validation_table() -> None:
    model = tree()
    bare = TreeModel(model.config, model.encoder, model.module)
    with pytest.raises(ConfigError, match="level from 1 to 5"):
        bare.options({"level": "auto"})


def test_rerank_by_the_encoder(index: Index) -> None:
    model, asked = tree(), ["where is the red owl?", "a golden hen"]
    q = model.encoder.encode_queries(asked)
    d = model.encoder.encode([document.text for document in documents()])
    cosine = (q / np.linalg.norm(q, axis=1, keepdims=True)) @ (d / np.linalg.norm(d, axis=1, keepdims=True)).T
    for row, hits in enumerate(index.search(asked, lexical=0, k=48, rerank="encoder", shortlist=1)):
        by_id = {document.id: score for document, score in zip(documents(), cosine[row], strict=True)}
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        assert {hit.id: hit.score for hit in hits} == pytest.approx(by_id, abs=2e-3)  # half precision
    for k, shortlist in ((3, 7), (5, 2)):
        listed = {hit.id for hit in index.search(asked[0], lexical=0, k=max(k, shortlist), level=2)}
        found = index.search(asked[0], lexical=0, k=k, level=2, rerank="encoder", shortlist=shortlist)
        best = sorted(listed, key=lambda id: -cosine[0][[d.id for d in documents()].index(id)])[:k]
        assert [hit.id for hit in found] == best
        explanation = found[0].explain()
        assert explanation.score == found[0].score == sum(part.value for part in explanation.parts)


def test_leaf_search_finds_nothing_where_nobody_fell_and_reranks_what_it_finds() -> None:
    few = Index.in_memory(tree())
    few.add(documents()[:1])
    asked = [document.text for document in documents()]  # the first falls where it lies itself
    plain = few.search(asked, k=3, within="greedy", lexical=0)
    again = few.search(asked, k=3, within="greedy", rerank="encoder", lexical=0)
    assert {len(hits) for hits in plain} == {0, 1}
    assert [[hit.id for hit in hits] for hits in again] == [[hit.id for hit in hits] for hits in plain]
    lost = next(question for question, hits in zip(asked, plain, strict=True) if not hits)
    assert few.search(lost, k=3, within="greedy", rerank="encoder", lexical=0) == []


def test_rerank_in_the_adapted_space(index: Index) -> None:
    model, asked = tree(), "where is the red owl?"
    embedded = [
        model.module.embed(torch.from_numpy(x)).numpy()
        for x in (model.encoder.encode_queries([asked]), model.encoder.encode([d.text for d in documents()]))
    ]
    assert not torch.equal(model.module.adapter.weight, torch.eye(48)), "the identity would show nothing"
    cosine = {d.id: score for d, score in zip(documents(), (embedded[0] @ embedded[1].T)[0], strict=True)}
    hits = index.search(asked, lexical=0, k=48, rerank="adapted")
    assert {hit.id: hit.score for hit in hits} == pytest.approx(cosine, abs=2e-3)  # stored in half precision
    assert (
        hits[0].explain().score
        == hits[0].score
        == index.explain(asked, hits[0].id, lexical=0, rerank="adapted").score
    )
    plain = Index.in_memory(train_tree(steps=1, space="encoder"))
    with pytest.raises(ConfigError, match="space='adapted'.*rerank='encoder'"):
        plain.search("cat", rerank="adapted")


@pytest.mark.parametrize("within", ["greedy", "global"])
def test_leaf_search_looks_into_the_querys_own_leaves(index: Index, within: str) -> None:
    model, asked = tree(), [f"where is the {d.metadata['colour']} owl?" for d in documents()[:48:8]]
    leaves = as_floats(model.encode_documents(documents())["leaves"])
    queries = model.encode_queries(asked, None)["leaves"]

    def fallen(p: np.ndarray) -> int:
        if within == "global":
            return int(p.argmax())
        low, high = 0, len(p)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if p[middle:high].sum() > p[low:middle].sum() else (low, middle)
        return low

    at, asked_at = [fallen(p) for p in leaves], [fallen(q) for q in queries]
    everything = index.search(asked, lexical=0, k=48)
    for row, hits in enumerate(index.search(asked, lexical=0, k=48, within=within)):
        inside = {d.id for d, leaf in zip(documents(), at, strict=True) if leaf == asked_at[row]}
        assert [(h.id, h.score) for h in hits] == [(h.id, h.score) for h in everything[row] if h.id in inside]
    if within == "global":
        assert [len(h) for h in index.search(asked, lexical=0, k=48, within=within, probe=32)] == [48] * 6


def test_a_level_the_tree_lacks_is_refused(index: Index) -> None:
    for level in (0, 6, -1):
        with pytest.raises(ConfigError, match=rf"level must be between 1 and 5, got {level}"):
            index.search("cat", level=level)
    with pytest.raises(ConfigError, match="'levels'.*Did you mean 'level'"):
        index.search("cat", levels=3)


def test_whole_numbers_of_numpy_are_numbers(index: Index) -> None:
    plain = {"level": 3, "rerank": "encoder", "shortlist": 7}
    given = {"level": np.int64(3), "rerank": "encoder", "shortlist": np.int32(7)}
    assert index.search("a red owl", **given) == index.search("a red owl", **plain)
    assert index.model.options({"probe": np.uint8(2)}).to_dict()["probe"] == 2
    with pytest.raises(ConfigError, match="level must be between 1 and 5, got 6"):
        index.search("a red owl", level=np.int64(6))
    with pytest.raises(ConfigError, match="level must be"):
        index.search("a red owl", level=np.float64(3))


@pytest.mark.parametrize(
    "options",
    [{"depth": 10}, {"depth": 8, "split": "mlp"}, {"depth": 8, "propagation": "learned"}, {"depth": 12}],
)
def test_a_text_has_the_same_leaves_alone_and_in_any_batch(options: dict) -> None:
    generator = np.random.default_rng(0)
    words = [f"word{n}" for n in range(200)]
    texts = [" ".join(generator.choice(words, 3)) for _ in range(300)]
    model = TreeModel.fit(
        [(text[:9], text) for text in texts[:64]],
        **{"encoder": FakeEncoder(384), "steps": 1, "batch_size": 16, "upper": 0, "progress": False}
        | options,
    )
    asked = model.options({})
    together = model.encode_queries(texts, asked)["leaves"]
    alone = np.concatenate([model.encode_queries([text], asked)["leaves"] for text in texts])
    np.testing.assert_array_equal(together, alone)
    index = Index.in_memory(model)
    index.add([Document(id=f"a{n}", text=text) for n, text in enumerate(texts)], progress=False)
    for n, text in enumerate(texts[:50]):  # twins that came alone: older ones first
        index.add([Document(id=f"b{n}", text=text)], progress=False)
    ranked = index.rank(texts[:50], 2, lexical=0)
    assert ranked.ids == [[f"a{n}", f"b{n}"] for n in range(50)]
    assert all(first == second for first, second in ranked.scores)
    single = [index.rank([text], 20, lexical=0).ids[0] for text in texts[:50]]
    assert single == index.rank(texts[:50], 20, lexical=0).ids


def test_training_helps_and_is_recorded() -> None:
    model = train_tree(steps=60, start="random", sharpness=2.0)
    record = model.record
    assert (record.documents, record.labelled, record.steps) == (48, True, 60)
    assert 0 < record.best_step <= 60
    assert record.pairs == 43  # a tenth of 48 questions is held out
    start = train_tree(steps=0, start="random", sharpness=2.0)
    index, untrained = Index.in_memory(model), Index.in_memory(start)
    for made in (index, untrained):
        made.add(documents())
    right = [
        sum(made.search(q, k=1)[0].document.text == d for q, d in pairs()) for made in (untrained, index)
    ]
    assert right[1] > right[0]


def test_documents_without_labels_train_too() -> None:
    model = TreeModel.fit(
        documents(), encoder=FakeEncoder(32), depth=3, steps=5, batch_size=8, progress=False
    )
    assert model.record.labelled is False
    assert model.record.pairs >= 10  # one-sentence documents yield few


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"split": "mlp", "hidden": 8},
        {"split": "cross_attention", "heads": 2, "head_width": 4, "depth": 3},
        {"propagation": "learned"},
        {"propagation": "none", "schedule": "constant"},
        {"space": "encoder", "schedule": "linear"},
        {"start": "random", "distill": 0.5, "l1": 0.01, "schedule": "matryoshka"},
    ],
    ids=str,
)
def test_checkpoint_round_trip_gives_the_same_arrays(tmp_path, options: dict) -> None:
    model = train_tree(**{"steps": 4} | options)
    model.save_pretrained(tmp_path / "ckpt")
    for loaded in (load_model(tmp_path / "ckpt"), TreeModel.from_pretrained(tmp_path / "ckpt")):
        assert loaded.fingerprint == model.fingerprint
        assert loaded.config == model.config
        assert loaded.record == model.record
        assert np.array_equal(
            loaded.encode_queries(["red cat"], None)["leaves"],
            model.encode_queries(["red cat"], None)["leaves"],
        )
    names = {path.name for path in (tmp_path / "ckpt").iterdir() if not path.name.startswith(".")}
    assert names - {"topics.json"} == {"config.json", "model.safetensors", "README.md", "manifest.json"}


def test_one_checkpoint_is_one_model_in_a_process(tmp_path) -> None:
    tree().save_pretrained(tmp_path / "a")
    tree().save_pretrained(tmp_path / "b")
    first = load_model(tmp_path / "a")
    assert load_model(tmp_path / "a") is first
    assert load_model(tmp_path / "b") is first, "the same weights and encoder from another folder"
    other = train_tree(steps=1, depth=4)
    other.save_pretrained(tmp_path / "a")
    assert load_model(tmp_path / "a").fingerprint == other.fingerprint != first.fingerprint


def test_another_encoder_is_refused(tmp_path) -> None:
    tree().save_pretrained(tmp_path / "ckpt")
    with pytest.raises(ModelMismatchError, match=r"fake:48.*fake:32"):
        load_model(tmp_path / "ckpt", encoder=FakeEncoder(32))


def test_a_checkpoint_of_an_unknown_method_is_refused(tmp_path) -> None:
    from palmette.hub import save_checkpoint

    facts = {"method": "forest", "config": {}, "encoder": {"name": "fake:32", "fingerprint": "0"}}
    save_checkpoint(tmp_path / "ckpt", facts, {"w": torch.zeros(1)}, "card")
    with pytest.raises(CheckpointError, match=r"'forest'.*upgrade palmette"):
        load_model(tmp_path / "ckpt")
    with pytest.raises(CheckpointError, match="load_model"):
        TreeModel.from_pretrained(tmp_path / "ckpt")


def test_weights_of_another_shape_are_refused(tmp_path) -> None:
    from palmette.hub import open_checkpoint, save_checkpoint

    path = tree().save_pretrained(tmp_path / "ckpt")
    checkpoint = open_checkpoint(path)
    tensors = {name: value[..., :-1] if value.ndim else value for name, value in checkpoint.tensors().items()}
    save_checkpoint(path, checkpoint.config, tensors, "card")
    with pytest.raises(CheckpointError, match="do not fit the config"):
        load_model(path)


def test_fit_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ConfigError, match="'depht'.*Did you mean 'depth'"):
        TreeModel.fit(pairs(), encoder=FakeEncoder(8), depht=3)
    with pytest.raises(InputError, match="no documents|empty"):
        TreeModel.fit([], encoder=FakeEncoder(8))
    with pytest.raises(TrainingError, match="at least 2 pairs .*, got 1, beside 1 held out to validate with"):
        TreeModel.fit([("q", "d"), ("q2", "d2")], encoder=FakeEncoder(8), depth=2, progress=False)


def test_killed_training_resumes_to_the_same_model(tmp_path) -> None:
    whole = train_tree(steps=20, evaluate_every=5, output_dir=tmp_path / "a")

    class Stop(Exception):
        pass

    import palmette.methods.tree.task as task

    calls, original = [], task.TreeTask.loss

    def stop(self, module, rows, generator, progress):
        calls.append(1)
        if len(calls) == 13:
            raise Stop
        return original(self, module, rows, generator, progress)

    task.TreeTask.loss = stop
    try:
        with pytest.raises(Stop):
            train_tree(steps=20, evaluate_every=5, output_dir=tmp_path / "b")
    finally:
        task.TreeTask.loss = original
    resumed = train_tree(steps=20, evaluate_every=5, output_dir=tmp_path / "b", resume=True)
    assert resumed.fingerprint == whole.fingerprint
