"""Which leaf a text falls into, and what nodes speak of."""

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from palmette import Index, TreeModel
from palmette.errors import CheckpointError
from palmette.methods.tree.branches import Branches
from palmette.methods.tree.topics import topics, topics_from_json, topics_to_json
from palmette.model.loading import _LOADED
from support.tiny import documents, train_tree, tree

PERFECT = ["".join(turns) for turns in product("LR", repeat=3)]
RAGGED = ["L", "RLL", "RLR", "RR"]


@pytest.mark.parametrize("leaves", [PERFECT, RAGGED])
def test_a_node_owns_the_columns_of_its_leaves(leaves: list[str]) -> None:
    branches = Branches(leaves)
    rows = np.random.default_rng(0).dirichlet(np.ones(len(leaves)), 20).astype(np.float32)
    masses = branches.masses(rows)
    for place, name in enumerate(branches.names):
        under = [column for column, leaf in enumerate(leaves) if leaf.startswith(name)]
        assert np.allclose(masses[:, place], rows[:, under].sum(1), atol=1e-6)
        assert branches.level[place] == len(name)
    assert branches.names[0] == ""
    assert branches.names[1] == "L"
    assert [branches.names[place] for place in branches.leaves] == leaves
    assert all(branches.parent[place] < place for place in range(1, len(branches)))


def test_counts_add_up_along_the_tree() -> None:
    branches = Branches(RAGGED)
    places = np.array([branches.place[name] for name in ("L", "RLL", "RLL", "RR", "L", "L")])
    counts = dict(zip(branches.names, branches.counted(places).tolist(), strict=True))
    assert counts == {"": 6, "L": 3, "R": 3, "RL": 2, "RLL": 2, "RLR": 0, "RR": 1}
    assert branches.ways()[branches.place["RLR"]].tolist() == [
        branches.place[name] for name in ("", "R", "RL", "RLR")
    ]
    assert branches.ways()[branches.place["L"]].tolist() == [0, 1, -1, -1]


def spread(**texts: list[str]) -> tuple[list[str], np.ndarray, Branches]:
    """Texts by leaf."""
    branches = Branches(PERFECT)
    pairs = [(text, branches.place[leaf]) for leaf, listed in texts.items() for text in listed]
    return [text for text, _ in pairs], np.array([place for _, place in pairs]), branches


def test_words_of_a_subtree_stand_against_the_rest() -> None:
    found = topics(
        *spread(
            LLL=[f"the comet {n} passed the old star" for n in range(30)],
            LRR=[f"a planet {n} circles its star in the dark" for n in range(30)],
            RLL=[f"she bakes bread number {n} with rye" for n in range(30)],
            RRR=[f"he boils soup number {n} with leeks" for n in range(30)],
        )
    )
    words = {node: {word for word, _ in terms} for node, terms in found.items()}
    assert "star" in words["L"]
    assert not words["L"] & words["R"]
    assert {"comet", "star"} <= words["LLL"]
    assert "planet" in words["LR"]
    assert "bakes bread" in words["RL"], "a pair goes before its words"
    assert not {word for terms in words.values() for word in terms} & {"the", "with", "its", "she", "12"}
    assert "" not in found, "nothing sets all texts apart from none"
    assert "LLR" not in found, "no text falls there"
    for terms in found.values():
        weights = [weight for _, weight in terms]
        assert weights == sorted(weights, reverse=True)
        parts = [part for word, _ in terms for part in word.split()]
        assert len(parts) == len(set(parts)), "a word is named once"


def test_a_term_counts_once_per_text() -> None:
    rest = [f"plain text {n}" for n in range(60)]
    found = topics(*spread(LLL=["moon " * 50, "moon", "sun moon"] + ["sun"] * 9, RRR=rest))
    weights = dict(found["L"])
    assert weights["sun"] > weights["moon"]


def test_a_word_is_no_pair_with_itself() -> None:
    found = topics(*spread(LLL=["class Decimal: Decimal numbers"] * 9, RRR=["plain"] * 20))
    assert "decimal decimal" not in {word for word, _ in found["L"]}


def test_other_scripts_are_read_too() -> None:
    found = topics(
        *spread(
            LLL=[f"Ökonomie wächst ({n})" for n in range(20)],
            LRL=[f"हिन्दी भाषा {n}" for n in range(20)],
            RLL=[f"東京は大きい{n}" for n in range(20)],
            RRL=[f"L'école d’été n°{n}" for n in range(20)],
        )
    )
    words = {word for terms in found.values() for word, _ in terms}
    assert "ökonomie wächst" in words
    assert "हिन्दी भाषा" in words
    assert "東京" in words
    assert "l'école d'été" in words


def test_possessives_and_quotes_are_the_same_word() -> None:
    found = topics(*spread(LLL=["Tesla's coil", "the 'Tesla’s", "TESLA"] * 3, RRR=["something else"] * 12))
    assert next(word for word, _ in found["L"]) in ("tesla", "tesla coil")


@pytest.mark.parametrize("texts", [[], ["", "  ", "the of and"], ["one text alone"]])
def test_nothing_to_say_is_no_topic(texts: list[str]) -> None:
    branches = Branches(PERFECT)
    assert topics(texts, np.full(len(texts), branches.place["LLL"]), branches) == {}


def test_hostile_texts_are_words_like_any_other() -> None:
    found = topics(*spread(LLL=["</script><img src=x> \u2028 \ud800 zebra"] * 9, RRR=["plain"] * 20))
    assert "zebra" in " ".join(word for word, _ in found["L"])
    topics_to_json(found)


def test_json_round_trip_and_refusals() -> None:
    found = {"L": [("old star", 3.5), ("comète", 2.25)], "LR": [("x", 1.0)]}
    assert topics_from_json(topics_to_json(found)) == found
    bad: list[object] = [
        [], {"X": []}, {"L": "star"}, {"L": [["star"]]}, {"L": [["star", "3"]]}, {"L": [[3, 3]]},
        {"L": [["", 1]]}, {"L": [["x" * 500, 1]]}, {"L": [["star", float("nan")]]}, {"L": [["star", True]]},
    ]  # fmt: skip
    for content in bad:
        with pytest.raises(CheckpointError, match="save the checkpoint again"):
            topics_from_json(json.dumps(content).encode())
    with pytest.raises(CheckpointError, match="no JSON"):
        topics_from_json(b"{")
    with pytest.raises(CheckpointError, match="no JSON"):
        topics_from_json(b"\xff\xfe{}")


def test_a_trained_tree_keeps_its_topics(tmp_path: Path) -> None:
    model = tree()
    words = {word for terms in model.topics.values() for word, _ in terms}
    assert words & {"ant", "bee", "cow", "hen", "red", "black"}
    assert not words & {"lives", "house", "sings", "night"}, "words of every document tell nothing"
    model.save_pretrained(tmp_path / "ckpt")
    _LOADED.clear()
    again = TreeModel.from_pretrained(tmp_path / "ckpt", encoder=model.encoder)
    assert again is not model
    assert again.topics == {node: list(terms) for node, terms in model.topics.items()}
    assert again.fingerprint == model.fingerprint


def test_topics_are_no_part_of_the_fingerprint(tmp_path: Path) -> None:
    one, other = train_tree(), train_tree()
    other.topics = {}
    other.save_pretrained(tmp_path / "ckpt")
    assert other.fingerprint == one.fingerprint
    assert "topics.json" not in {path.name for path in (tmp_path / "ckpt").iterdir()}
    _LOADED.clear()
    assert TreeModel.from_pretrained(tmp_path / "ckpt", encoder=one.encoder).topics == {}


def test_damaged_topics_are_refused(tmp_path: Path) -> None:
    model = train_tree()
    model.topics = {"L": [("", 1.0)]}
    model.save_pretrained(tmp_path / "ckpt")
    _LOADED.clear()
    with pytest.raises(CheckpointError, match=r"topics\.json.*'L'"):
        TreeModel.from_pretrained(tmp_path / "ckpt", encoder=model.encoder)


def test_an_explanation_names_topics() -> None:
    model = tree()
    index = Index.build(documents(), model)
    named = 0
    for question in ("where does the red cow live?", "the black ant", "the golden hen"):
        explanation = index.search(question, k=1, lexical=0)[0].explain()
        steps = explanation.detail["nodes"]
        for step in steps:
            assert step["topic"] == [word for word, _ in model.topics.get(step["node"], ())]
        places = explanation.detail["places"]
        for place in places:
            named += 1
            assert place["topic"] == [word for word, _ in model.topics[place["node"]]]
            assert place["even"] == 2.0 ** -len(place["node"])
            assert min(place["query"], place["document"]) > place["even"]
            assert f"{', '.join(place['topic'][:3])} (node {place['node']} holds" in explanation.text
        assert ("both speak more than most of" in explanation.text) == bool(places)
        assert f"the larger share of it leads to {explanation.detail['path']}," in explanation.text
    assert named
