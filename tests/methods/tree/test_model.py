"""TreeModel: options, searches at every level, checkpoints, training runs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from palmette import Document, FakeEncoder, TreeModel, evaluate, load_data, load_model
from palmette.encoder import States
from palmette.errors import CheckpointError, ConfigError, ModelMismatchError
from palmette.hub import open_checkpoint, save_checkpoint
from palmette.methods.tree import TreeSearch
from palmette.methods.tree import leaves as tree_leaves
from support.alone import Index
from support.tiny import documents, pairs, train_tree, tree


@pytest.fixture(scope="module")
def index() -> Index:
    made = Index.in_memory(tree())
    made.add(documents())
    return made


def test_embeddings_of_the_encoder_are_enough_unless_the_tree_reads_tokens() -> None:
    assert tree().accepts_embeddings
    reading = trained(steps=1, split="cross_attention", depth=2)
    assert not reading.accepts_embeddings
    with pytest.raises(ConfigError, match="give the text itself"):
        reading.encode_queries(np.ones((1, 48), np.float32), TreeSearch())


def trained(**options: Any) -> TreeModel:
    """A tree that learns its splits, and ranks by its leaves."""
    return train_tree(**{"start": "random", "ranking": "leaves", "sharpness": 2.0} | options)


def stored_quality(model: TreeModel) -> Any:
    """Quality of the dev questions' ranking by what an index stores."""
    data = load_data(pairs(), dev_fraction=0.5)
    return evaluate(model, data, split="dev", progress=False).rows[0].metrics["ndcg@10"]


def test_a_gentle_trees_ranking_is_kept_in_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    gentle: dict[str, Any] = {"depth": 9, "sharpness": 0.06, "steps": 1}
    data = load_data(pairs(), dev_fraction=0.5)
    model = trained(data=data, **gentle)
    assert model.arrays()[0].dtype == "float16"
    assert trained(data=data, **gentle | {"sharpness": 9.0}).arrays()[0].dtype == "uint16"
    x = [torch.from_numpy(model.encoder.encode([d.text for d in documents()]))]
    x.append(torch.from_numpy(model.encoder.encode_queries(data.query_texts)))
    d, q = (model.module(States(vectors)).numpy() for vectors in x)
    best = np.minimum(q[:, None], d[None]).sum(2).argsort(axis=1)[:, ::-1][:, :3]
    index = Index.build(documents(), model)
    keys = [d.id for d in documents()]
    found = [[keys.index(hit.id) for hit in hits] for hits in index.search(data.query_texts, k=3, lexical=0)]
    assert (np.array(found) == best).mean() > 0.9
    assert model.record.metrics["ndcg@10"] == pytest.approx(stored_quality(model), abs=2e-3)
    monkeypatch.setattr(tree_leaves, "LEAST_DIFFERENCE", 0.0)  # fixed point all the same
    worse = trained(data=data, **gentle)
    assert worse.arrays()[0].dtype == "uint16"
    assert worse.record.metrics["ndcg@10"] < model.record.metrics["ndcg@10"] - 0.01, "what is stored is judged"
    assert worse.record.metrics["ndcg@10"] == pytest.approx(stored_quality(worse), abs=2e-3)


def test_options_of_a_search_are_checked(index: Index) -> None:
    for level in (0, 6, -1, np.int64(6)):
        with pytest.raises(ConfigError, match=rf"level must be between 1 and 5, got {level}"):
            index.search("cat", level=level)
    with pytest.raises(ConfigError, match="level must be"):
        index.search("cat", level=np.float64(3))
    with pytest.raises(ConfigError, match="'levels'.*Did you mean 'level'"):
        index.search("cat", levels=3)
    assert index.search("a red owl", level=np.int64(3)) == index.search("a red owl", level=3)


@pytest.mark.parametrize(
    "options", [{"start": "clusters"}, {"depth": 10}, {"depth": 8, "propagation": "learned"}], ids=str
)
def test_a_text_has_the_same_leaves_alone_and_in_any_batch(options: dict[str, Any]) -> None:
    generator = np.random.default_rng(0)
    words = [f"word{n}" for n in range(200)]
    texts = [" ".join(generator.choice(words, 3)) for _ in range(48)]
    how = {"encoder": FakeEncoder(384), "steps": 1, "batch_size": 16, "progress": False, "ranking": "leaves"}
    how |= {"start": "random", "sharpness": 0.3}
    model = TreeModel.fit([(text[:9], text) for text in texts[:32]], **how | options)
    together = model.encode_queries(texts, TreeSearch())
    alone = [model.encode_queries([text], TreeSearch()) for text in texts]
    for name, array in together.items():
        np.testing.assert_array_equal(array, np.concatenate([one[name] for one in alone]))
    index = Index.in_memory(model)
    index.add([Document(id=f"a{n}", text=text) for n, text in enumerate(texts)], progress=False)
    for n, text in enumerate(texts[:8]):  # twins that came alone: older ones first
        index.add([Document(id=f"b{n}", text=text)], progress=False)
    ranked = index.rank(texts[:8], 2, lexical=0)
    assert ranked.ids == [[f"a{n}", f"b{n}"] for n in range(8)]
    assert all(first == second for first, second in ranked.scores)
    single = [index.rank([text], 20, lexical=0).ids[0] for text in texts[:8]]
    assert single == index.rank(texts[:8], 20, lexical=0).ids


def test_one_checkpoint_is_one_model_in_a_process(tmp_path: Path) -> None:
    tree().save_pretrained(tmp_path / "a")
    tree().save_pretrained(tmp_path / "b")
    first = load_model(tmp_path / "a")
    assert load_model(tmp_path / "a") is first
    assert load_model(tmp_path / "b") is first, "the same weights and encoder from another folder"
    other = train_tree(steps=1, depth=4)
    other.save_pretrained(tmp_path / "a")
    assert load_model(tmp_path / "a").fingerprint == other.fingerprint != first.fingerprint


def test_checkpoints_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = tree().save_pretrained(tmp_path / "ckpt")
    with pytest.raises(ModelMismatchError, match=r"fake:48.*fake:32"):
        load_model(path, encoder=FakeEncoder(32))
    checkpoint = open_checkpoint(path)
    tensors = {name: value[..., :-1] if value.ndim else value for name, value in checkpoint.tensors().items()}
    save_checkpoint(path, checkpoint.config, tensors, "card")
    with pytest.raises(CheckpointError, match="do not fit the config"):
        load_model(path)
    facts = {"method": "forest", "config": {}, "encoder": {"name": "fake:32", "fingerprint": "0"}}
    save_checkpoint(path, facts, {"w": torch.zeros(1)}, "card")
    with pytest.raises(CheckpointError, match="'forest'.*upgrade palmette"):
        load_model(path)
    with pytest.raises(CheckpointError, match="load_model"):
        TreeModel.from_pretrained(path)
