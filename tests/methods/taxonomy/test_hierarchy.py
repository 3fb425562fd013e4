"""Hierarchies, the matches of their nodes, and samples of these."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palmette import Document
from palmette.errors import DuplicateIdError, InputError, NotFoundError
from palmette.methods.taxonomy import Hierarchy, hierarchy
from palmette.methods.taxonomy.data import Sampler
from palmette.methods.taxonomy.hierarchy import Matches


def random_dag(size: int, seed: int, parents: int = 2) -> Hierarchy:
    """Every node but the first has up to so many parents among those before it; the order is then shuffled."""
    draw = np.random.default_rng(seed)
    names = [f"n{i}" for i in draw.permutation(size)]
    above = {i: draw.integers(0, i, draw.integers(0, parents + 1)) for i in range(1, size)}
    edges = [(names[i], names[j]) for i, rows in above.items() for j in rows]
    return Hierarchy.from_edges(edges, names)


def shortest(tree: Hierarchy, start: int) -> dict[int, int]:
    """Breadth first, one node at a time."""
    seen, level, distance = {start: 0}, [start], 0
    while level:
        distance += 1
        level = list({p for node in level for p in tree.parents[node].tolist()} - seen.keys())
        seen |= dict.fromkeys(level, distance)
    return seen


@given(st.integers(1, 40), st.integers(0, 10_000), st.sampled_from([1, 2, 3]), st.sampled_from([None, 0, 2]))
@settings(max_examples=40)
def test_matches_are_all_ancestors_at_their_shortest_distance(
    size: int, seed: int, parents: int, limit: int | None
) -> None:
    tree = random_dag(size, seed, parents)
    matches = tree.matches(limit)
    for row in range(size):
        here = slice(matches.starts[row], matches.starts[row + 1])
        found = dict(zip(matches.documents[here].tolist(), matches.distances[here].tolist(), strict=True))
        expected = {node: d for node, d in shortest(tree, row).items() if limit is None or d <= limit}
        assert found == expected
        assert sorted(found) == matches.documents[here].tolist(), "ascending"


def test_paths_keep_nodes_of_one_name_apart() -> None:
    tree = Hierarchy.from_paths(["A > B > Others", "A > C > Others", "A > B"])
    with pytest.raises(NotFoundError, match="no node 'z'"):
        tree.row("z")
    assert tree.ids == ["A", "A > B", "A > B > Others", "A > C", "A > C > Others"]
    assert tree.names == ["A", "B", "Others", "C", "Others"]
    assert tree.ancestors(tree.row("A > C > Others")).tolist() == [4, 3, 0]
    assert Hierarchy.from_paths(["a/b"], separator="/").ids == ["a", "a / b"]
    with pytest.raises(InputError, match="'A >  > B' has an empty step"):
        Hierarchy.from_paths(["A >  > B"])


def test_parents_come_from_metadata() -> None:
    nodes = [
        Document(id="animal", text="animal"),
        Document(id="pet", text="pet", metadata={"parents": []}),
        Document(id="dog", text="dog", metadata={"parents": ["animal", "pet"]}),
        Document(id="puppy", text="puppy", metadata={"parents": "dog", "title": "Puppy"}),
    ]
    tree = Hierarchy.from_documents(nodes)
    assert tree is not None
    assert [tree.ids[row] for row in tree.ancestors(3)] == ["puppy", "dog", "animal", "pet"]
    assert tree.names == ["animal", "pet", "dog", "Puppy"]
    assert Hierarchy.from_documents(nodes[:2]) is None
    wrong = ((3, "an id or a list of ids, got 3"), ([4], "hold ids .str., got 4"), ({"a": 1}, "an id or"))
    for bad, words in wrong:
        with pytest.raises(InputError, match=words):
            Hierarchy.from_documents([*nodes, Document(id="x", text="x", metadata={"parents": bad})])
    with pytest.raises(InputError, match="'wolf' in 'cub' → 'wolf'"):
        Hierarchy.from_documents([*nodes, Document(id="cub", text="cub", metadata={"parents": "wolf"})])


@pytest.mark.parametrize(
    ("edges", "nodes", "words"),
    [
        ([("a", "b"), ("b", "c"), ("c", "d"), ("d", "b"), ("d", "top")], None, "'b' → 'c' → 'd' → 'b'"),
        ([("a", "a")], None, "cycle: 'a' → 'a'"),
        ([("b", "a"), ("nobody", "a")], ["a", "b"], r"1 of 2 edges .*'nobody' in 'nobody' → 'a'"),
        ([], ["a", "b", "a"], "'a' twice"),
        ([("a", "b"), "cd"], None, "edge 1 must be"),
        ([("a", 1)], None, "edge 0: ids are str"),
        ([], None, "at least one node"),
    ],
)
def test_what_is_no_hierarchy_is_named(edges: list, nodes: list[str] | None, words: str) -> None:
    with pytest.raises(DuplicateIdError if "twice" in words else InputError, match=words):
        Hierarchy.from_edges(edges, nodes)


def test_too_many_ancestors_are_refused_before_they_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hierarchy, "MAX_PAIRS", 1200)
    chain = Hierarchy.from_edges([(str(i), str(i + 1)) for i in range(500)])
    with pytest.raises(InputError, match=r"more than 1200 ancestors within distance 2: give max_distance"):
        chain.matches()
    assert len(chain.matches(1).documents) == 501 + 500


def test_many_nodes_cost_their_edges() -> None:
    """20,000 nodes, a chain of 10,000 among them: arrays of the size of the edges, no recursion."""
    chain = [(str(i), str(i + 1)) for i in range(10_000)]
    tree = Hierarchy.from_edges(chain + [(f"leaf {i}", str(i)) for i in range(10_000)])
    assert int(tree.depths.max()) == 10_001
    up = [*range(1, 10_002), *range(3, 10_003)]  # nodes above each, itself included: chain, leaves
    assert len(tree.matches(3).documents) == sum(min(4, count) for count in up)


def matches() -> Matches:
    """Three queries over five documents: {0, 1}, {1, 2, 3} and {4}."""
    queries, documents, distances = [0, 0, 1, 1, 1, 2], [0, 1, 1, 2, 3, 4], [0, 1, 0, 1, 3, 0]
    return Matches.of(*map(np.array, (queries, documents, distances)), count=3, size=5)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("regular", [1 / 6, 1 / 6 + 1 / 9, 1 / 9, 1 / 9, 1 / 3]), ("heavy-tail", [0, 1 / 2, 1 / 8, 3 / 8, 0])],
)
def test_draws_follow_their_frequencies(kind: str, expected: list[float]) -> None:
    sampler = Sampler(matches(), kind)
    generator, queries = torch.Generator().manual_seed(0), np.tile(np.arange(3), 4000)
    kept, drawn = sampler.draw(queries, generator)
    np.testing.assert_allclose(np.bincount(drawn, minlength=5) / len(drawn), expected, atol=0.02)
    some = {0, 1} if kind == "heavy-tail" else {0, 1, 2}
    assert set(queries[kept]) == some, "nothing is far from query 2"
    found = np.exp(sampler.log_frequencies.numpy())
    np.testing.assert_allclose(found, np.where(np.array(expected) > 0, expected, 1 / 6), atol=1e-6)
    of = [{0, 1}, {1, 2, 3}, {4}]
    assert all(d in of[q] for q, d in zip(queries[kept].tolist(), drawn.tolist(), strict=True))


def test_every_match_is_drawn_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    generator, queries = torch.Generator().manual_seed(0), np.array([1, 2, 1])
    owner, drawn = Sampler(matches()).draw(queries, generator)
    assert (owner.tolist(), drawn.tolist()) == ([0, 0, 0, 1, 2, 2, 2], [1, 2, 3, 4, 1, 2, 3])
    asked = np.array([1, 2, 1, 1, 1]) / 3  # of three queries so many have the document
    np.testing.assert_allclose(Sampler(matches()).log_frequencies.exp().numpy(), asked, atol=1e-6)
    monkeypatch.setattr("palmette.methods.taxonomy.data.MOST_MATCHES", 2)
    sampler = Sampler(matches())
    owner, drawn = sampler.draw(np.ones(3000, np.int64), generator)
    assert np.bincount(owner).tolist() == [2] * 3000
    np.testing.assert_allclose(np.bincount(drawn, minlength=5) / 3000, [0, 2 / 3, 2 / 3, 2 / 3, 0], atol=0.03)
    np.testing.assert_allclose(sampler.log_frequencies.exp()[1], (1 + 2 / 3) / 3, atol=1e-6)
