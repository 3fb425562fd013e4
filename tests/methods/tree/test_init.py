"""Start of a tree: clusters of the documents, or random splits with multipliers for training."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from palmette import FakeEncoder, TreeModel
from palmette.data import load_data
from palmette.encoder import States
from palmette.errors import ConfigError, TrainingError
from palmette.methods.tree import TreeConfig
from palmette.methods.tree.init import initialise
from palmette.methods.tree.leaves import greedy_leaf
from palmette.methods.tree.module import Tree
from palmette.methods.tree.training import TreeTask
from palmette.training.maths import ntvd, symmetric_info_nce
from palmette.training.pairs import TrainingPairs, Validation
from support.tiny import documents, pairs

WIDTH = 12


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def leaves_of(tree: Tree, x: torch.Tensor) -> NDArray[np.int64]:
    with torch.no_grad():
        return greedy_leaf(tree(States(x)).numpy())


@pytest.mark.parametrize("sizes", [[40] * 8, [100, 60, 40, 30, 20, 10, 5, 3], [30] * 5])
def test_every_cluster_has_a_leaf_and_new_texts_follow(sizes: list[int]) -> None:
    centres = torch.nn.functional.normalize(torch.randn(len(sizes), WIDTH, generator=seeded(3)), dim=1)
    at = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    tree = Tree(TreeConfig(depth=3, width=WIDTH)).eval()

    def around(seed: int) -> torch.Tensor:
        return centres[at] + 0.05 * torch.randn(len(at), WIDTH, generator=seeded(seed))

    initialise(tree, around(1), 0)
    for seed in (1, 2):
        leaf = leaves_of(tree, around(seed))
        alike = [np.bincount(at[leaf == one]).max() for one in set(leaf.tolist())]
        assert sum(alike) > 0.95 * len(at), "a leaf is of one cluster"
        assert len(alike) >= len(sizes)
    with torch.no_grad():
        sure = tree(States(around(1))).amax(1)
        tree.linear.slopes.mul_(4)
        assert tree(States(around(1))).amax(1).median() > sure.median() > 0.5


@pytest.mark.parametrize("rows", [torch.ones(9, WIDTH), torch.eye(WIDTH)[:3], torch.ones(1, WIDTH)], ids=len)
def test_few_documents_leave_nodes_undecided(rows: torch.Tensor) -> None:
    tree = Tree(TreeConfig(depth=3, width=WIDTH)).eval()
    initialise(tree, rows, 0)
    distinct = len(rows.unique(dim=0))
    assert len(set(leaves_of(tree, rows).tolist())) == distinct
    assert (tree.linear.directions.norm(dim=1) > 0).sum() == distinct - 1


def test_a_random_start_sends_the_average_document_either_way() -> None:
    x = torch.randn(50, WIDTH, generator=seeded()) + 7
    tree = Tree(TreeConfig(depth=3, width=WIDTH, start="random")).eval()
    initialise(tree, x, 0)
    torch.testing.assert_close(tree.linear.directions.norm(dim=1), torch.ones(7))
    with torch.no_grad():
        even = tree(States(x.mean(0, keepdim=True)))
    torch.testing.assert_close(even, torch.full((1, 8), 1 / 8), atol=1e-4, rtol=1e-3)


def test_every_levels_multiplier_starts_where_its_loss_is_lowest() -> None:
    queries, others = (torch.randn(200, WIDTH, generator=seeded(seed)) for seed in (0, 1))
    data = load_data([(f"question {row}", f"answer {row}") for row in range(200)])
    pairs = TrainingPairs(data, queries, queries + others, *data.pairs("train"), Validation.of(data, 0))
    tree = Tree(TreeConfig(depth=4, width=WIDTH, start="random", sharpness=1.0)).eval()
    initialise(tree, pairs.documents, 0)
    TreeTask(tree, pairs).init_multipliers(seeded())
    rows = torch.randperm(len(pairs), generator=seeded())[:256].numpy()
    query_rows, document_rows = pairs.query_rows[rows], pairs.document_rows[rows]
    queries, texts = pairs.queries[query_rows], pairs.documents[document_rows]
    known = pairs.known_answers(query_rows, document_rows)
    with torch.no_grad():
        for level in range(1, 5):
            similarity = ntvd(tree(States(queries), level), tree(States(texts), level))
            at = float(symmetric_info_nce(similarity * tree.multiplier(level), known))
            for factor in (1 / 30, 1 / 2, 2, 30):
                assert at < float(symmetric_info_nce(similarity * tree.multiplier(level) * factor, known))
    assert len(tree.log_multipliers.unique()) > 1, "levels have their own"


def test_clusters_need_no_questions_and_the_papers_recipe_does() -> None:
    how = {"encoder": FakeEncoder(32), "depth": 3, "progress": False}
    record = TreeModel.fit(documents(), **how).record
    assert (record.pairs, record.steps, record.labelled) == (0, 0, False)
    with pytest.raises(TrainingError, match="start='random' needs at least 2 pairs .* got 0"):
        TreeModel.fit(documents(), **how, preset="paper")
    model = TreeModel.fit(pairs(), **how, preset="paper", steps=2, batch_size=8)
    config, record = model.config, model.record
    assert (config.split, config.propagation) == ("cross_attention", "learned")
    assert (config.start, config.ranking, config.depth) == ("random", "leaves", 3)
    assert model.module.linear is None
    assert (record.pairs > 1, record.steps, record.labelled) == (True, 2, True)
    assert record.training["learning_rate"] == 4e-4
    for options in ({"split": "cross_attention"}, {"propagation": "learned"}):
        with pytest.raises(ConfigError, match="give start='random' too"):
            TreeModel.fit(["a text"], **how, **options)
