"""A tree as data."""

import json
import pickle

import numpy as np
import pytest

from palmette import Index
from palmette.errors import ConfigError, InputError, NotFoundError
from palmette.methods.tree import TreeInspection
from palmette.methods.tree.branches import Branches
from palmette.methods.tree.inspection.congruence import of_nodes, of_texts
from palmette.methods.tree.inspection.serving import TreeServer
from support.tiny import documents, tree


@pytest.fixture(scope="module")
def index() -> Index:
    return Index.build(documents(), tree())


@pytest.fixture(scope="module")
def inspection(index: Index) -> TreeInspection:
    return TreeInspection.of(index, queries=["where does the red owl live?"])


def test_numbers_below_zero_are_refused(index: Index) -> None:
    for name in ("listed", "terms"):
        with pytest.raises(ConfigError, match=f"{name} must be at least 0, got -1"):
            TreeInspection.of(index, **{name: -1})
        with pytest.raises(ConfigError, match=f"{name} must be a whole number, got 2.5"):
            TreeInspection.of(index, **{name: 2.5})
    bare = TreeInspection.of(index, listed=0, terms=0, progress=False)
    assert bare.listed == ()
    assert not any(node.words for node in bare.nodes)
    assert bare.to_html().startswith("<!doctype html>")


@pytest.mark.parametrize("queries", [3, ["red", 3], None])
def test_what_is_no_query_is_refused(inspection: TreeInspection, queries: object) -> None:
    with pytest.raises(InputError, match="a query must be a str, got (int: 3|NoneType: None)"):
        inspection.show(queries)


def test_examples_are_counted(inspection: TreeInspection) -> None:
    assert [len(inspection.examples("", k)) for k in (0, 2)] == [0, 2]
    with pytest.raises(ConfigError, match="k must be at least 0, got -1"):
        inspection.examples("", -1)


@pytest.mark.parametrize("port", ["x", None, 80.5, 70_000])
def test_a_port_that_is_none_is_refused(inspection: TreeInspection, port: object) -> None:
    with pytest.raises(InputError, match=f"port {port!r} cannot be listened on"):
        TreeServer(inspection, port)


def test_counts_and_shares_add_up(inspection: TreeInspection) -> None:
    assert inspection.documents == inspection.node("").documents == 48
    assert len(inspection.leaves) == 32
    assert len(inspection.nodes) == 63
    for node in inspection.nodes:
        if node.level < 5:
            left, right = (inspection.node(node.name + turn) for turn in "LR")
            assert left.documents + right.documents == node.documents
            assert left.share + right.share == pytest.approx(node.share)
            assert 0.5 <= node.decided <= 1
        else:
            assert node.decided is None
    assert inspection.balance.empty_leaves == sum(
        inspection.node(leaf).documents == 0 for leaf in inspection.leaves
    )
    assert 1 <= inspection.balance.effective_leaves <= 32
    assert 1 <= inspection.balance.leaves_per_document <= 32
    assert 0 <= inspection.balance.gini < 1


def test_nodes_agree_with_the_arrays(index: Index, inspection: TreeInspection) -> None:
    with index.backend.read() as view:
        rows = np.asarray(view.array("leaves", view.keys().tolist()), np.float64)
    rows /= rows.sum(1, keepdims=True)
    assert inspection.node("RL").share == pytest.approx(rows[:, 16:24].sum(1).mean(), abs=1e-4)
    entropy = -(rows * np.log(rows + 1e-12)).sum(1)
    assert inspection.balance.leaves_per_document == pytest.approx(np.exp(entropy).mean(), rel=1e-3)
    left = rows[:, :16].sum(1)
    assert inspection.node("").decided == pytest.approx(np.maximum(left, 1 - left).mean(), abs=1e-4)
    assert inspection.node("L").documents == (left >= 0.5).sum()


def test_documents_are_listed_by_leaf_and_probability(inspection: TreeInspection) -> None:
    assert {d.id for d in inspection.listed} == {d.id for d in documents()}
    for node in inspection.nodes:
        if node.documents and node.level:
            shown = inspection.examples(node.name, 99)
            assert len(shown) == node.documents
            reached = [d.reached[node.level - 1] for d in shown]
            assert reached == sorted(reached, reverse=True)
            assert all(d.leaf.startswith(node.name) for d in shown)


def test_few_listed_documents_are_spread_over_the_leaves(index: Index, inspection: TreeInspection) -> None:
    few = TreeInspection.of(index, listed=10)
    assert len(few.listed) == 10
    assert len({d.leaf for d in few.listed}) == 10
    best = {d.leaf: inspection.examples(d.leaf, 1)[0].id for d in few.listed}
    assert {d.leaf: d.id for d in few.listed} == best


def test_routes_follow_the_query(index: Index, inspection: TreeInspection) -> None:
    (route,) = inspection.routes
    assert route.reached[""] == 1
    for level in range(5):
        node = route.path[:level]
        other = node + ("R" if route.path[level] == "L" else "L")
        assert route.reached[route.path[: level + 1]] >= route.reached.get(other, 0) - 1e-4
    hits = index.search(route.query, k=5, lexical=0)
    assert [(d.id, d.score) for d in route.found] == [(hit.id, hit.score) for hit in hits]
    leaves = {d.id: d.leaf for d in inspection.listed}
    assert all(d.leaf == leaves[d.id] for d in route.found)
    two = inspection.show(["red owl", "golden bee"])
    assert [r.query for r in two.routes] == ["red owl", "golden bee"]
    assert two.nodes == inspection.nodes
    with pytest.raises(InputError, match="empty"):
        inspection.show(" ")


def test_it_is_json_and_rows_and_survives_pickling(inspection: TreeInspection) -> None:
    data = json.loads(json.dumps(inspection.to_dict(), allow_nan=False))
    assert data["documents"] == 48
    assert data["nodes"][1]["name"] == "L"
    assert "router" not in data
    rows = list(inspection.rows())
    assert rows[0]["expected"] == pytest.approx(48)
    assert {row["level"] for row in rows} == set(range(6))
    copy = pickle.loads(pickle.dumps(inspection))
    assert copy == inspection
    with pytest.raises(InputError, match="make it anew"):
        copy.show("red owl")


def test_what_cannot_be_inspected_says_so(inspection: TreeInspection) -> None:
    with pytest.raises(InputError, match="no documents"):
        TreeInspection.of(Index.in_memory(tree()))
    with pytest.raises(NotFoundError, match="'LRX'"):
        inspection.node("LRX")
    with pytest.raises(InputError, match="cannot be written"):
        inspection.save_html("/nowhere/at/all.html")

    class Other:
        model = type("Model", (), {"method": "paths"})()

    with pytest.raises(ConfigError, match="'paths'"):
        TreeInspection.of(Other())


def test_congruence_of_nodes_against_brute_force() -> None:
    names = ["", "L", "R", "LL", "LR"]
    vectors = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    found = of_nodes(vectors, names)
    cosine = {(a, b): float(unit[names.index(a)] @ unit[names.index(b)]) for a in names for b in names}
    one = [cosine[pair] for pair in (("", "L"), ("", "R"), ("L", "LL"), ("L", "LR"))]
    two = [cosine[pair] for pair in (("", "LL"), ("", "LR"))]
    assert [step for step, *_ in found.steps] == [1, 2]
    assert [pairs for *_, pairs in found.steps] == [4, 2]
    assert [mean for _, mean, _ in found.steps] == pytest.approx([np.mean(one), np.mean(two)], abs=1e-5)
    every = [cosine[a, b] for a in names for b in names if a < b]
    assert found.average == pytest.approx(np.mean(every), abs=1e-5)


def test_congruence_of_texts_groups_pairs_by_their_common_ancestor() -> None:
    branches = Branches(["L", "RLL", "RLR", "RR"])
    leaves = np.array([branches.place[name] for name in ("L", "L", "RLL", "RLR", "RR")])
    vectors = np.array([[1, 0], [1, 0], [0, 1], [0, 1], [1, 1]], np.float32)
    found = of_texts(vectors, leaves, branches)
    half = 0.5**0.5
    assert [(level, pairs) for level, _, pairs in found.steps] == [(0, 6), (1, 3), (2, 1)]
    assert [mean for _, mean, _ in found.steps] == pytest.approx([2 * half / 6, (1 + 2 * half) / 3, 1.0])
