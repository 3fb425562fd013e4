"""Given negatives: encoded, drawn by the step's generator, and felt by the loss."""

from pathlib import Path

import numpy as np
import torch

from palmette import FakeEncoder
from palmette.cache import EncodingCache
from palmette.data import load_data
from palmette.encoder import States
from palmette.losses import info_nce, ntvd
from palmette.methods.tree import TreeConfig
from palmette.methods.tree.init import initialise
from palmette.methods.tree.losses import levels_of_step
from palmette.methods.tree.module import Tree
from palmette.methods.tree.training import TreeTask
from palmette.pairs import EncodedPairs

PAIRS = [
    (f"what does the {animal} say", f"the {animal} says its own name") for animal in "cat dog owl fox".split()
]
WRONG = ["a cat is a mammal", "the cat sleeps all day"]
ROWS = np.arange(4)


def encoded(folder: Path, negatives: list[str]) -> EncodedPairs:
    data = load_data([(*PAIRS[0], negatives), *PAIRS[1:]], dev_fraction=0)
    return EncodedPairs.encode(data, FakeEncoder(16), EncodingCache(folder))


def task_on(pairs: EncodedPairs) -> TreeTask:
    tree = Tree(TreeConfig(depth=3, width=16, distill=0.0))
    initialise(tree, torch.from_numpy(FakeEncoder(16).encode([text for _, text in PAIRS])), draw(0))
    return TreeTask(tree, pairs)


def draw(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_one_given_negative_per_query_by_the_generator(tmp_path: Path) -> None:
    pairs = encoded(tmp_path, WRONG)
    vectors = torch.from_numpy(FakeEncoder(16).encode(WRONG))
    seen = set()
    for seed in range(20):
        hard, again = pairs.hard_negatives(ROWS, draw(seed)), pairs.hard_negatives(ROWS, draw(seed))
        assert torch.equal(hard.documents, again.documents)
        assert hard.documents.shape == (1, 16)
        assert not hard.known.any()
        seen.add((vectors == hard.documents).all(1).nonzero().item())
    assert seen == {0, 1}
    assert pairs.hard_negatives(ROWS[1:], draw(0)) is None


def test_another_querys_answer_is_masked(tmp_path: Path) -> None:
    hard = encoded(tmp_path, [PAIRS[2][1]]).hard_negatives(ROWS, draw(0))
    assert hard.known.tolist() == [[False], [False], [True], [False]]


def test_a_negative_changes_the_loss_and_none_changes_nothing(tmp_path: Path) -> None:
    plain, hard = task_on(encoded(tmp_path, [])), task_on(encoded(tmp_path, WRONG))
    without = plain.loss(plain.module, ROWS, draw(3), 0.0)
    assert hard.loss(hard.module, ROWS, draw(3), 0.0) > without
    [level] = levels_of_step(plain.module.config, draw(3), 0.0)
    queries, documents, known = plain.pairs.batch(ROWS)
    similarity = ntvd(plain.module(States(queries), level), plain.module(States(documents), level))
    assert torch.equal(without, info_nce(similarity * plain.module.multiplier(level), known))
