"""Explanations: the path that two texts share, and topics of nodes."""

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from palmette import TreeModel
from palmette.errors import CheckpointError, ConfigError, InputError
from palmette.lexical.terms import terms_to_json
from palmette.methods.base import LOADED
from palmette.methods.tree.explain import outline, topics_of_texts
from palmette.methods.tree.leaves import greedy_leaf
from support.alone import Index
from support.tiny import documents, space, train_tree, tree

LEAVES = ["".join(turns) for turns in product("LR", repeat=3)]


def topics(**texts: list[str]) -> dict[str, list[tuple[str, float]]]:
    """Topics of a tree of depth 3, of texts given by leaf."""
    pairs = [(text, LEAVES.index(leaf)) for leaf, listed in texts.items() for text in listed]
    return topics_of_texts([text for text, _ in pairs], np.array([leaf for _, leaf in pairs], np.int64), 3)


def test_words_of_a_subtree_stand_against_the_rest() -> None:
    found = topics(
        LLL=[f"the comet {n} passed the old star" for n in range(30)],
        LRR=[f"a planet {n} circles its star in the dark" for n in range(30)],
        RLL=[f"she bakes bread number {n} with rye" for n in range(30)],
        RRR=[f"he boils soup number {n} with leeks" for n in range(30)],
    )
    words = {node: {word for word, _ in terms} for node, terms in found.items()}
    assert "star" in words["L"]
    assert not words["L"] & words["R"]
    assert {"comet", "old star"} <= words["LLL"]
    assert "planet" in words["LR"]
    assert "bakes bread" in words["RL"], "a pair goes before its words"
    assert not {word for terms in words.values() for word in terms} & {"the", "with", "its", "she", "12"}
    assert "" not in found, "nothing sets all texts apart from none"
    assert "LLR" not in found, "no text falls there"
    assert topics(LLL=[]) == topics(LLL=["", "the of and"]) == topics(LLL=["one text alone"]) == {}


def test_an_outline_counts_the_documents_of_every_node() -> None:
    index = Index.build(documents(), tree())
    with index.backend.read() as view:
        leaf = greedy_leaf(np.asarray(view.rows("leaves", view.keys().tolist()), np.float32))
    held = ["".join("LR"[at >> (4 - turn) & 1] for turn in range(5)) for at in leaf.tolist()]
    first, *lines = outline(index).splitlines()
    assert first == "48 documents"
    counts = {name: int(count) for name, count in (line.split()[:2] for line in lines)}
    assert counts == {name[:h]: sum(one.startswith(name[:h]) for one in held) for name in held for h in range(1, 6)}
    assert [line.split()[0] for line in lines] == sorted(counts), "a node before those below it"
    assert any("owl" in line for line in lines)
    assert outline(index, level=2).splitlines()[1:] == [line for line in lines if len(line.split()[0]) <= 2]


def test_what_has_no_outline_says_so() -> None:
    with pytest.raises(ConfigError, match="only a tree has an outline.*'space'"):
        outline(Index.build(documents(), space()))
    with pytest.raises(InputError, match="add some first"):
        outline(Index.in_memory(tree()))
    with pytest.raises(ConfigError, match="level must be between 1 and 5, got 9"):
        outline(Index.build(documents(), tree()), level=9)


def test_topics_are_no_part_of_the_fingerprint_and_checked(tmp_path: Path) -> None:
    model = train_tree(depth=3)
    fingerprint, model.topics = model.fingerprint, {}
    model.save_pretrained(tmp_path / "bare")
    assert "topics.json" not in {path.name for path in (tmp_path / "bare").iterdir()}
    LOADED.clear()
    bare = TreeModel.from_pretrained(tmp_path / "bare", encoder=model.encoder)
    assert (bare.topics, bare.fingerprint) == ({}, fingerprint)
    bad: list[object] = [
        [], {"X": []}, {"L": "star"}, {"L": [["star"]]}, {"L": [["star", "3"]]}, {"L": [[3, 3]]},
        {"L": [["", 1]]}, {"L": [["x" * 500, 1]]}, {"L": [["star", float("nan")]]}, {"L": [["star", True]]},
    ]  # fmt: skip
    for content in bad:
        with pytest.raises(CheckpointError, match=r"topics\.json.*save the checkpoint again"):
            bare.load_extras({"topics.json": json.dumps(content).encode()})
    for content in (b"{", b"\xff\xfe{}"):
        with pytest.raises(CheckpointError, match=r"topics\.json is no JSON"):
            bare.load_extras({"topics.json": content})
    bare.load_extras({"topics.json": terms_to_json({"L": [("comète", 2.25)], "LR": [("x", 1.0)]})})
    assert bare.topics == {"L": [("comète", 2.25)], "LR": [("x", 1.0)]}


@pytest.fixture(scope="module")
def index() -> Index:
    return Index.build(documents(), tree())


def test_a_hit_names_the_finest_topic_that_both_texts_are_under(index: Index) -> None:
    topics, named = tree().topics, 0
    for document in documents():
        explanation = index.search(document.text, k=1, lexical=0)[0].explain()
        steps = explanation.detail["nodes"]
        for step in steps:
            assert step["topic"] == [word for word, _ in topics.get(step["node"], ())]
        both = [step for step in steps[2:] if step["topic"] and min(step["query"], step["document"]) >= 0.5]
        assert explanation.detail["topic"] == (both[-1] if both else None)
        assert explanation.brief == (f"both about: {', '.join(both[-1]['topic'][:3])}" if both else "")
        assert explanation.text.endswith(explanation.brief)
        named += bool(both)
    assert named > 10
