import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palmette import FakeEncoder, Index, RetrievalData, TreeModel, load_model
from palmette.cache import EncodingCache
from palmette.encoder import States
from palmette.errors import ConfigError, InputError
from palmette.lexical.mix import options_key
from palmette.methods.tree.config import TreeConfig
from palmette.methods.tree.living.pruning import _folded, _order
from palmette.methods.tree.living.rows import closed_over, judged, reshaped, rows_of
from palmette.methods.tree.living.starting import unused_directions
from palmette.methods.tree.module import Tree
from palmette.methods.tree.propagation import coarsen
from palmette.methods.tree.shape import Shape, level_of, name_of, node_of
from palmette.pairs import EncodedPairs
from support.tiny import documents, pairs, train_tree, tree

SPLITS = [
    {},
    {"start": "random", "space": "encoder"},
    {"split": "mlp", "hidden": 8},
    {"split": "cross_attention", "heads": 2, "head_width": 4},
    {"split": "cross_attention", "heads": 2, "head_width": 4, "aggregation": "linear_then_mean"},
    {"split": "cross_attention", "heads": 2, "head_width": 4, "aggregation": "mean_then_linear"},
]


def questions() -> RetrievalData:
    """All questions to learn from, and the same held out."""
    queries = {f"q{i}": query for i, (query, _) in enumerate(pairs())}
    judged = {f"q{i}": {document.id: 1} for i, document in enumerate(documents())}
    return RetrievalData("questions", documents(), queries, {"train": judged, "dev": judged})


def states(model: TreeModel) -> States:
    """What the tree reads of the documents."""
    texts = [document.text for document in documents()]
    return model.encoder.states(texts, outputs=("pooled", "tokens"))


@pytest.mark.parametrize("options", SPLITS, ids=str)
def test_growing_leaves_every_old_decision_as_it_was(options: dict) -> None:
    old = train_tree(depth=3, steps=2, **options)
    before = {name: value.clone() for name, value in old.module.state_dict().items()}
    new = old.grow(pairs(), leaves=["LLR", "RRR"], levels=2, steps=4, batch_size=8, progress=False)
    shape = new.config.shape
    assert [len(nodes) for nodes in shape.levels] == [1, 2, 4, 8, 10, 14]
    _, here, there = np.intersect1d(old.config.shape.splits, shape.splits, return_indices=True)
    assert len(here) == len(old.config.shape.splits) == 7
    for name, value in old.module.state_dict().items():
        assert torch.equal(value, before[name]), "the old model is untouched"
        after = new.module.state_dict()[name]
        if name == "log_multipliers":
            assert torch.equal(after, value[[0, 1, 2, 2, 2]]), "a new level takes over the last one's"
        elif name not in rows_of(old.config):
            assert torch.equal(after, value)
        elif name == "refine.inner":
            assert torch.equal(after[there, :3], value[here])
        else:
            assert torch.equal(after[there], value[here])
    with torch.no_grad():
        read = states(old)
        np.testing.assert_allclose(
            new.module.scores(read, 5)[:, there], old.module.scores(read, 3)[:, here], atol=1e-6
        )
        leaves, grown = old.module(read), new.module(read)
        torch.testing.assert_close(coarsen(grown, shape, 3), leaves, atol=1e-6, rtol=1e-5)
        assert float(grown.min()) > 0
    assert new.fingerprint != old.fingerprint


@pytest.mark.parametrize("options", SPLITS[:4], ids=str)
def test_new_nodes_learn_and_nothing_else_does(options: dict) -> None:
    old = train_tree(depth=3, steps=2, **{"space": "encoder", "upper": 0} | options)  # room to become better
    asked = {"leaves": ["LLL", "RLR"], "batch_size": 16, "progress": False}
    start, learned = (
        old.grow(pairs(), steps=steps, learning_rate=0.01, weight_decay=0.1, **asked) for steps in (0, 5)
    )
    places = [start.config.shape.splits.tolist().index(node_of(name)) for name in asked["leaves"]]
    moved = set()
    for name, value in start.module.state_dict().items():
        difference = (learned.module.state_dict()[name] - value).abs()
        if float(difference.max()) > 0:
            moved.add(name)
            rest = np.setdiff1d(np.arange(len(value)), places)
            assert float(difference[rest].max()) == 0
    assert moved
    assert moved <= set(rows_of(old.config))


def test_a_leaf_is_crowded_when_it_holds_twice_its_share() -> None:
    old = train_tree(depth=3)
    fallen = Index.build(documents(), old).model.encode_documents(documents())["reached"][:, 0]
    counts = np.bincount(fallen, minlength=8)
    for crowded, limit in ((None, 12), (1, 1), (9, 9)):
        grown = old.grow(documents(), crowded=crowded, steps=0, progress=False)
        split = set(grown.config.shape.splits.tolist()) - set(old.config.shape.splits.tolist())
        assert split == {7 + leaf for leaf in np.flatnonzero(counts > limit)}
    assert old.grow(documents(), crowded=48, progress=False) is old


def test_growing_is_recorded_and_survives_a_checkpoint(tmp_path) -> None:
    old = train_tree(depth=3)
    new = old.grow(questions(), leaves=["LLL"], steps=3, batch_size=8, progress=False)
    again = new.prune(questions(), columns=5, progress=False)
    assert again.record.data == old.record.data
    assert [(c["change"], c["leaves before"], c["leaves"]) for c in again.record.changes] == [
        ("grown", 8, 9),
        ("pruned", 9, 5),
    ]
    assert new.record.changes[0]["steps"] == 3
    names = [
        {name_of(node) for level in m.config.shape.levels for node in level.tolist()} for m in (new, again)
    ]
    for model, before, known in ((new, old, names[0]), (again, new, names[1])):
        assert {name: model.topics[name] for name in before.topics if name in known} == {
            name: terms for name, terms in before.topics.items() if name in known
        }
        assert set(model.topics) <= known
    assert new.record.metrics["ndcg@10 at level 4"] == new.record.metrics["ndcg@10"]
    assert "| Changed since | change: pruned, data: questions, leaves before: 9, leaves: 5 |" in again.card()
    again.save_pretrained(tmp_path / "ckpt")
    loaded = load_model(tmp_path / "ckpt")
    assert (loaded.config, loaded.record, loaded.fingerprint) == (
        again.config,
        again.record,
        again.fingerprint,
    )
    index = Index.build(documents(), loaded)
    hit = index.search("where does the red owl live?", k=1, level="auto")[0]
    assert sum(part.value for part in hit.explain().parts) == pytest.approx(hit.score, abs=1e-5)


def test_growing_refuses_what_it_cannot_split() -> None:
    with pytest.raises(ConfigError, match="levels must be a whole number, got 1.5"):
        tree().grow(pairs(), levels=1.5)
    with pytest.raises(ConfigError, match="leaves must be names such as 'LLLLL', got 3"):
        tree().grow(pairs(), leaves=[3])
    with pytest.raises(ConfigError, match=r"'LL' is no leaf of this tree: its leaves are 'LLLLL'"):
        tree().grow(pairs(), leaves=["LL"])
    with pytest.raises(ConfigError, match=r"write \['LLLLL'\]"):
        tree().grow(pairs(), leaves="LLLLL")
    with pytest.raises(ConfigError, match="crowded must be at least 1, got 0"):
        tree().grow(pairs(), crowded=0)
    with pytest.raises(ConfigError, match="'step'.*Did you mean 'steps'"):
        tree().grow(pairs(), step=3)
    for propagation, options in (("learned", {}), ("none", {"schedule": "constant"})):
        model = train_tree(steps=0, depth=2, propagation=propagation, **options)
        for change in (model.grow, model.prune):
            with pytest.raises(ConfigError, match=f"'{propagation}'.*propagation='product'"):
                change(pairs())
    deepest = Tree(TreeConfig(depth=14, width=4, closed=closed_over(range(0, 2**13, 1))[1]))
    assert deepest.config.depth == 14


def test_a_leaf_on_the_deepest_level_stays() -> None:
    way = [node_of("L" * turns) for turns in range(14)]
    depth, closed = closed_over(way)
    config = TreeConfig(depth=depth, closed=closed, width=48)
    deep = TreeModel(config, FakeEncoder(48), Tree(config))
    with pytest.raises(ConfigError, match="level 14, the deepest"):
        deep.grow(pairs(), leaves=["L" * 14])
    grown = deep.grow(documents(), crowded=1, steps=0, progress=False)
    assert grown.config.depth == 14


def test_new_directions_are_the_widest_unused_ones() -> None:
    generator = torch.Generator().manual_seed(0)
    scale = torch.tensor([9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0])
    x = torch.randn(500, 8, generator=generator) * scale
    used = torch.eye(8)[[0, 2, 2]] * 3
    found = unused_directions(used, x, 12, generator)
    assert found.shape == (12, 8)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(12))
    assert float((found[:6] @ used.T).abs().max()) < 1e-5, "six are left"
    assert [int(row.abs().argmax()) for row in found[:3]] == [1, 3, 4]
    torch.testing.assert_close(found[:6] @ found[:6].T, torch.eye(6), atol=1e-5, rtol=0)
    assert unused_directions(torch.eye(8), x, 3, generator).shape == (3, 8)


RAGGED = st.builds(
    lambda picks: closed_over({a for pick in picks for a in ancestors(pick)}),
    st.lists(st.integers(0, 62), min_size=1, max_size=12),
)


def ancestors(node: int) -> list[int]:
    """The node and those above it."""
    return [(node + 1 >> up) - 1 for up in range(level_of(node) + 1)]


@settings(deadline=None, max_examples=30)
@given(RAGGED, st.integers(0, 1000), st.data())
def test_pruning_sums_columns(made: tuple, seed: int, data: st.DataObject) -> None:
    shape = Shape(*made)
    draw = torch.Generator().manual_seed(seed)
    q, d = (torch.rand(n, shape.leaves, generator=draw).softmax(1) for n in (3, 9))
    order = _order(shape, q, d)
    assert sorted(order) == shape.splits.tolist()
    assert all(order.index(node) < order.index((node - 1) // 2) for node in order if node)
    kept = order[data.draw(st.integers(0, len(order) - 1)) :]
    config = TreeConfig(depth=shape.depth, closed=shape.closed, width=4)
    smaller = config.replace(**dict(zip(("depth", "closed"), closed_over(kept), strict=True)))
    whole = Tree(config)
    torch.nn.init.normal_(whole.linear.directions, generator=draw)
    states = States(torch.randn(5, 4, generator=draw))
    with torch.no_grad():
        expected = _folded(whole(states), shape, kept)
        torch.testing.assert_close(reshaped(whole, smaller)(states), expected)


@pytest.mark.parametrize("options", SPLITS, ids=str)
def test_a_pruned_model_sums_what_it_cut(options: dict) -> None:
    old = train_tree(depth=3, steps=2, **options)
    new = old.prune(questions(), columns=4, progress=False)
    with torch.no_grad():
        read = states(old)
        expected = _folded(old.module(read), old.config.shape, new.config.shape.splits.tolist())
        assert new.module(read).shape == (48, 4)
        torch.testing.assert_close(new.module(read), expected, atol=1e-6, rtol=1e-5)


def test_a_split_that_tells_nothing_apart_is_cut_first() -> None:
    shape = Shape(3)
    draw = torch.Generator().manual_seed(0)
    q, d = (torch.rand(n, 8, generator=draw) + 0.01 for n in (4, 30))
    q[:, 5], d[:, 5] = 0.0, 0.0  # everything goes left at RL
    q, d = q / q.sum(1, keepdim=True), d / d.sum(1, keepdim=True)
    assert _order(shape, q, d)[0] == node_of("RL")


def test_pruning_keeps_the_quality_it_is_told_to() -> None:
    model = train_tree(steps=60)
    pairs = EncodedPairs.encode(questions(), model.encoder, EncodingCache())
    full = judged(model.module, pairs)[1]["ndcg@10"]
    sizes = []
    for tolerance in (0.0, 0.05, 0.3, 1.0):
        pruned = model.prune(questions(), tolerance=tolerance, progress=False)
        sizes.append(pruned.config.leaves)
        reached = full if pruned is model else pruned.record.metrics["ndcg@10"]
        assert reached >= (1 - tolerance) * full - 1e-6
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 2
    assert 2 < sizes[2] < 32
    assert model.prune(questions(), columns=32) is model
    with pytest.raises(ConfigError, match="columns must be between 2 and 32, got 33"):
        model.prune(questions(), columns=33)
    with pytest.raises(ConfigError, match="columns must be a whole number, got 2.5"):
        model.prune(questions(), columns=2.5)


def rows(model: TreeModel) -> list[float]:
    """The validation table that ``level="auto"`` reads."""
    return [model.record.metrics[f"ndcg@10 at level {h}"] for h in range(1, model.config.depth + 1)]


def auto(model: TreeModel) -> int:
    return model.level(model.options({"level": "auto"}))


def test_levels_that_stay_keep_their_validation() -> None:
    old, met = (
        tree(),
        [
            f"The quantum computer number {i} has {7 * i} qubits. It hums loudly in lab {i}."
            for i in range(30)
        ],
    )
    assert len(set(rows(old))) > 2, "equal rows would show nothing"
    for few in (1, 2, 30):
        grown = old.grow(met[:few], leaves=["LLLLL"], steps=0, progress=False)
        assert rows(grown) == [*rows(old), rows(old)[-1]], "too few questions say nothing of the new level"
        assert auto(grown) == auto(old)
    pruned = old.prune(pairs(), columns=8, progress=False)
    kept = [
        h
        for h in range(1, pruned.config.depth + 1)
        if np.array_equal(old.config.shape.levels[h], pruned.config.shape.levels[h])
    ]
    assert kept
    assert [rows(pruned)[h - 1] for h in kept] == [rows(old)[h - 1] for h in kept]


def test_a_new_level_is_judged_by_how_it_compares_on_the_same_questions() -> None:
    old = tree()
    grown = old.grow(questions(), leaves=["LLLLL", "RRRRR"], steps=3, batch_size=8, progress=False)
    same = EncodedPairs.encode(questions(), old.encoder, EncodingCache())
    before, after = (judged(model.module, same)[1]["ndcg@10"] for model in (old, grown))
    assert before != pytest.approx(rows(old)[-1], abs=0.05), "these questions are not those of the table"
    assert rows(grown)[:-1] == rows(old)
    assert rows(grown)[-1] == pytest.approx(rows(old)[-1] * after / before, abs=1e-5)
    average = np.arange(1, 7) ** 2 @ np.array(rows(grown)) / 91
    assert grown.record.metrics["ndcg@10 over levels"] == pytest.approx(average, abs=1e-5)
    bare = TreeModel(old.config, old.encoder, old.module)
    assert rows(bare.grow(questions(), leaves=["LLLLL"], steps=0, progress=False))[-2] == pytest.approx(
        before
    )
    assert not bare.grow(pairs()[:9], leaves=["LLLLL"], steps=0, progress=False).record.metrics


def test_words_count_as_they_do_at_the_level_that_leaves_lie_on() -> None:
    old = tree()
    assert old.mixes['{"level": 3}'] != old.mixes[""]
    pruned = old.prune(pairs(), columns=4, progress=False)
    depth = pruned.config.depth
    assert depth < 5
    assert pruned.mix(pruned.options({}), "auto") == old.mix(old.options({"level": depth}), "auto")
    assert set(pruned.mixes) == set(map(options_key, pruned.calibrated()))
    for level in range(1, depth):
        assert pruned.mix(pruned.options({"level": level}), "auto") == old.mixes[f'{{"level": {level}}}']
    grown = old.grow(documents(), leaves=["LLLLL"], steps=0, progress=False)
    for level in (5, 6):
        assert grown.mix(grown.options({"level": level}), "auto") == old.mixes[""]
    back = grown.prune(pairs(), columns=32, progress=False)
    assert back.mixes[""] == old.mixes["" if back.config.depth > 4 else '{"level": 4}']
    same = old.prune(pairs(), columns=31, progress=False)
    assert same.config.depth == 5
    assert same.mixes == old.mixes


def test_a_grown_tree_keeps_its_leaves_as_they_were_kept() -> None:
    old = train_tree(depth=10, steps=0, upper=0, space="encoder")
    grown = old.grow(documents(), leaves=["L" * 10], steps=0, progress=False)
    assert grown.config.leaves == 1025
    assert {spec.name: spec.dtype for spec in grown.arrays()}["leaves"] == "uint16"
    asked = [query for query, _ in pairs()[:3]]
    with Index.build(documents(), old) as before, Index.build(documents(), grown) as after:
        for level in (1, 5, 9, 10):
            one, other = (made.rank(asked, 48, level=level, lexical=0) for made in (before, after))
            assert (one.ids, one.scores) == (other.ids, other.scores)


def test_data_without_queries_is_refused() -> None:
    bare = RetrievalData("bare", documents(), {}, {})
    with pytest.raises(InputError, match=r"bare has no held-out queries"):
        tree().prune(bare)
    with pytest.raises(InputError, match=r"bare has no training pairs"):
        tree().grow(bare)


def test_an_index_is_copied_for_the_grown_model(tmp_path) -> None:
    index = Index.build(documents(), tree())
    grown = tree().grow(documents(), crowded=1, steps=0, progress=False)
    copy = index.copy_to(tmp_path / "copy", model=grown, progress=False)
    fresh = Index.build(documents(), grown)
    asked = [query for query, _ in pairs()[:5]]
    assert copy.search(asked, k=48) == fresh.search(asked, k=48)
    assert Index.open(tmp_path / "copy").model.fingerprint == grown.fingerprint
    assert index.model is tree(), "the index itself stays as it is"

    class Broken(TreeModel):
        def encode_documents(self, documents):
            raise InputError("no")

    broken = Broken(grown.config, grown.encoder, grown.module)
    with pytest.raises(InputError, match="no"):
        index.copy_to(tmp_path / "other", model=broken)
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]
