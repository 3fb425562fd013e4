"""The training loss against its formula written out by hand in double precision, and the level of each step."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from palmette import FakeEncoder, load_data
from palmette.encoder import States
from palmette.encoder.cache import EncodingCache
from palmette.methods.tree import TreeConfig
from palmette.methods.tree.init import initialise
from palmette.methods.tree.losses import level_of_step
from palmette.methods.tree.module import Tree
from palmette.methods.tree.training import TreeTask
from palmette.training.pairs import TrainingPairs
from support.reference import info_nce

ROWS = np.array([0, 1, 2, 3, 4, 5, 3])
"""A batch: a question with two right answers, two questions with one answer, one pair twice."""
ASKED = [("red", "a"), ("red", "b"), ("green", "c"), ("blue", "c"), ("white", "d"), ("black", "e")]
WRONG = {"red": ["x", "y"], "green": ["a"], "white": ["x"]}


@pytest.fixture(scope="module")
def encoded(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, TrainingPairs]:
    """The pairs with given wrong answers and without."""
    cache: Path = tmp_path_factory.mktemp("cache")
    rows = [{"query": query, "positive": document} for query, document in ASKED]
    hard = [{**row, "negatives": WRONG.get(row["query"], [])} for row in rows]
    data = {wrong: load_data(given, dev_fraction=0) for wrong, given in ((False, rows), (True, hard))}
    return {
        wrong: TrainingPairs.encode(loaded, FakeEncoder(12), EncodingCache(cache)) for wrong, loaded in data.items()
    }


def untrained(**options: Any) -> Tree:
    """A tree whose levels have multipliers of their own."""
    draw = torch.Generator().manual_seed(0)
    tree = Tree(TreeConfig(**{"depth": 3, "width": 12, "start": "random", "sharpness": 3.0} | options))
    with torch.no_grad():
        initialise(tree, torch.randn(20, 12, generator=draw), 0)
        tree.log_multipliers.copy_(torch.tensor([1.0, 1.5, 2.0]))
    return tree.eval()


def by_hand(tree: Tree, pairs: TrainingPairs, level: int, negatives: list[str]) -> float:
    """Equation 1 at a level."""
    data = pairs.data
    texts = {document.id: document.text for document in data.corpus}
    right = {
        query: {texts[id] for id, grade in data.qrels["train"][name].items() if grade > 0}
        for name, query in data.queries.items()
    }
    query = [data.query_texts[row] for row in pairs.query_rows[ROWS]]
    document = [data.texts[row] for row in pairs.document_rows[ROWS]]
    encoder = FakeEncoder(12)
    read = [encoder.encode_queries(query), encoder.encode(document), encoder.encode(negatives or ["none"])]
    with torch.no_grad():
        leaves = [tree(States(torch.from_numpy(x))).double().numpy() for x in read]
    own = np.arange(len(query))
    known = np.array([[text in right[one] for text in (*document, *negatives)] for one in query])
    q, d, x = (part.reshape(len(part), 2**level, -1).sum(2) for part in leaves)
    every = np.concatenate([d, x[: len(negatives)]])
    logits = float(tree.multiplier(level).detach()) * (np.minimum(q[:, None], every).sum(2) - 1)
    back = info_nce(logits[:, own].T, own, known[:, own].T)
    return (info_nce(logits, own, known) + back) / 2


def test_the_loss_is_its_formula(encoded: dict[bool, TrainingPairs]) -> None:
    tree = untrained()
    pairs = encoded[True]
    known = pairs.known_answers(pairs.query_rows[ROWS], pairs.document_rows[ROWS])
    assert known.sum() > len(ROWS) + 4, "some questions have several answers"
    for wrong, pairs in encoded.items():
        for seed in (7, 8):
            level = level_of_step(tree.config.depth, drawing := torch.Generator().manual_seed(seed))
            hard = pairs.hard_negatives(ROWS, drawing)
            known = pairs.known_answers(pairs.query_rows[ROWS], hard)
            assert (len(hard) > 0 and bool(known.any()) and not known.all()) == wrong
            negatives = [pairs.data.texts[row] for row in hard]
            loss = TreeTask(tree, pairs).loss(tree, ROWS, torch.Generator().manual_seed(seed), 0.5)
            assert float(loss.detach()) == pytest.approx(by_hand(tree, pairs, level, negatives), rel=1e-4)


def test_the_multipliers_learn_by_the_gradient_of_the_formula(encoded: dict[bool, TrainingPairs]) -> None:
    tree, pairs, step, seed = untrained(), encoded[False], 1e-2, 8
    assert level_of_step(3, torch.Generator().manual_seed(seed)) == 3
    TreeTask(tree, pairs).loss(tree, ROWS, torch.Generator().manual_seed(seed), 0.5).backward()
    around = []
    for change in (step, -step):
        with torch.no_grad():
            tree.log_multipliers[2] += change
            around.append(by_hand(tree, pairs, 3, []))
            tree.log_multipliers[2] -= change
    slope = (around[0] - around[1]) / (2 * step)
    assert abs(slope) > 1e-3
    assert tree.log_multipliers.grad.tolist() == pytest.approx([0, 0, slope], rel=1e-2)


def test_levels_are_drawn_in_proportion_to_their_squares() -> None:
    generator = torch.Generator().manual_seed(0)
    draws = torch.tensor([level_of_step(4, generator) for _ in range(4000)])
    expected = torch.arange(1.0, 5) ** 2
    shares = torch.bincount(draws, minlength=5)[1:] / 4000
    torch.testing.assert_close(shares, expected / expected.sum(), atol=0.025, rtol=0)
