"""Routing, losses and mined negatives against EHI's equations in NumPy; every weight differs from the others."""

from itertools import product

import numpy as np
import pytest
import torch

from palmette.data import load_data
from palmette.methods.paths.config import PathsConfig
from palmette.methods.paths.module import Paths
from palmette.methods.paths.training import NEAREST, PathsTask
from palmette.training.pairs import TrainingPairs
from support.reference import Doubles, randomise, relu, softmax, unit, weights_of

BRANCHES, HEIGHT, WIDTH, TEXTS = 3, 2, 5, 24
OPTIONS = {
    "branches": BRANCHES, "height": HEIGHT, "width": WIDTH, "semantic": 1.3, "indexing": 0.7, "intra_leaf": 0.45,
    "margin": 0.35, "similar": 0.6,
}  # fmt: skip


def random_paths(**options: object) -> Paths:
    module = Paths(PathsConfig(**OPTIONS | options))
    randomise(module, 4, 0.8)
    return module.double()


def task_of(module: Paths) -> PathsTask:
    """Questions of which some share an answer and some have a given wrong one; vectors at random."""
    wrong = [[f"answer {n % 17 + 5}"] * (n % 3 == 0) for n in range(TEXTS)]
    data = load_data([(f"question {n // 2}", f"answer {n % 17}", wrong[n]) for n in range(TEXTS)], dev_fraction=0)
    draw = torch.Generator().manual_seed(8)
    queries, documents = (
        torch.randn(count, WIDTH, generator=draw) for count in (len(data.query_texts), len(data.corpus))
    )
    pairs = TrainingPairs(data, queries, documents, *data.pairs("train"), None)
    return PathsTask(module, pairs, None)


def along(w: dict[str, Doubles], x: Doubles, turns: tuple[int, ...] = ()) -> tuple[Doubles, list[int], float]:
    """Equation 1 of one text along some turns or its likeliest path: path embedding, path, probability of the leaf.

    p = softmax(Wᵀ F(k) + b) · p(parent), F(k) = k + ReLU(Uᵀk)
    """
    parts, path, reached = [], list[int](), 1.0
    branches = len(w["indexer.bias.0"])
    for h in range(sum(name.startswith("indexer.bias") for name in w)):
        k = np.concatenate([*(np.eye(branches)[turn] for turn in reversed(path)), x])
        f = k + relu(w[f"indexer.inner.{h}"].T @ k)
        p = softmax(w[f"indexer.outer.{h}"].T @ f + w[f"indexer.bias.{h}"]) * reached
        parts.append(p)
        path.append(turns[h] if turns else int(p.argmax()))
        reached = float(p[path[-1]])
    return np.concatenate(parts), path, reached


def loss_by_hand(task: PathsTask, rows: np.ndarray, documents: np.ndarray) -> tuple[float, list[float]]:
    """Equation 6 of training rows, against these documents, of which the first are their own; and its three parts."""
    w, config, pairs = weights_of(task.module), task.module.config, task.pairs
    q = unit(pairs.queries[pairs.query_rows[rows]].double().numpy())
    d = unit(pairs.documents[documents].double().numpy())
    tq, td = (np.array([along(w, x)[0] for x in some]) for some in (q, d))
    known = pairs.data.positives_mask(pairs.query_rows[rows], documents)
    siamese, indexing, intra, count, apart = 0.0, 0.0, 0.0, 0, 0
    for i in range(len(rows)):
        for j in range(len(documents)):
            if known[i, j]:
                continue
            count += 1
            siamese += max(0, q[i] @ d[j] - q[i] @ d[i] + config.margin)  # equation 3
            indexing += max(0, tq[i] @ td[j] - tq[i] @ td[i] + config.margin)  # equation 4
            if d[i] @ d[j] < config.similar:
                apart += 1
                intra += max(0, td[i] @ td[j] - td[i] @ td[i] + config.margin)  # algorithm 1, anchored on d₊
    assert 0 < apart < count, "some documents are alike"
    parts = [siamese / count, indexing / count, intra / apart]
    return float(np.dot([config.semantic, config.indexing, config.intra_leaf], parts)), parts


@pytest.mark.parametrize(("branches", "height"), [(5, 1), (3, 2), (2, 3)])
def test_path_embeddings_and_beams_are_equation_1(branches: int, height: int) -> None:
    module = random_paths(branches=branches, height=height).requires_grad_(False)
    w, indexer, x = (weights_of(module), module.indexer, unit(np.random.default_rng(0).normal(size=(40, WIDTH))))
    found = indexer(torch.from_numpy(x))
    by_hand = [along(w, one) for one in x]
    np.testing.assert_allclose(found.embedding, [embedding for embedding, _, _ in by_hand], atol=1e-9)
    assert found.path.tolist() == [path for _, path, _ in by_hand]
    assert len({tuple(path) for _, path, _ in by_hand}) > 2
    asked, ways = torch.from_numpy(x[:5]), list(product(range(branches), repeat=height))
    assert indexer.numbers(torch.tensor(ways)).tolist() == list(range(len(ways)))
    assert [tuple(indexer.path_of(leaf)) for leaf in range(len(ways))] == ways
    beam = indexer.beam(asked, len(ways))
    for one, leaves, logs in zip(x, beam.leaves.numpy(), beam.logs.numpy(), strict=False):
        every = np.array([along(w, one, way)[2] for way in ways])  # of every leaf, by its number
        assert every.sum() == pytest.approx(1)
        np.testing.assert_allclose(np.exp(logs), -np.sort(-every))
        np.testing.assert_allclose(np.exp(logs), every[leaves])
    assert indexer.beam(asked, 2).leaves.shape == (5, 2)
    assert torch.equal(indexer.beam(asked, 1).leaves[:, 0], indexer.numbers(found.path[:5]))


def test_the_loss_of_a_batch_is_equation_6() -> None:
    task, rows = task_of(random_paths().float()), np.arange(0, TEXTS, 2)
    hard = task.pairs.hard_negatives(rows, torch.Generator().manual_seed(1))
    assert len(hard)
    documents = np.concatenate([task.pairs.document_rows[rows], hard])
    expected, parts = loss_by_hand(task, rows, documents)
    assert min(abs(np.diff([*parts, parts[0]]))) > 0.02, "no part can stand for another"
    loss = task.loss(task.module, rows, torch.Generator().manual_seed(1), 0.0)
    assert float(loss.detach()) == pytest.approx(expected, abs=1e-5)


def test_mined_negatives_are_the_nearest_wrong_documents_of_the_querys_leaf() -> None:
    task = task_of(random_paths(negatives="leaves").float())
    w, pairs = weights_of(task.module), task.pairs
    q, d = (unit(x.double().numpy()) for x in (pairs.queries, pairs.documents))
    leaf_q, leaf_d = ([tuple(along(w, x)[1]) for x in some] for some in (q, d))
    mined, empty = task.mine_negatives(), 0
    assert mined.shape == (len(pairs), min(NEAREST, len(d)))
    for row, query in enumerate(pairs.query_rows):
        known = pairs.data.positives_mask(np.array([query]), np.arange(len(d)))[0]
        inside = [n for n in range(len(d)) if not known[n] and leaf_d[n] == leaf_q[query]]
        by_hand = sorted(inside, key=lambda n: -(q[query] @ d[n]))
        assert mined[row][mined[row] >= 0].tolist() == by_hand[:NEAREST]
        empty += not by_hand
    assert empty < len(pairs) / 2


def test_a_batch_takes_one_mined_negative_of_each_query() -> None:
    task, rows = task_of(random_paths(negatives="leaves").float()), np.arange(0, TEXTS, 2)
    mined, draw = task.mine_negatives(), torch.Generator().manual_seed(1)
    hard = task.pairs.hard_negatives(rows, draw)
    assert len(hard)
    choice = torch.randint(mined.shape[1], (len(rows),), generator=draw).numpy()
    drawn = np.unique(mined[rows, choice])
    documents = np.concatenate([task.pairs.document_rows[rows], hard, drawn[drawn >= 0]])
    assert (drawn >= 0).any()
    expected, _ = loss_by_hand(task, rows, documents)
    loss = task.loss(task.module, rows, torch.Generator().manual_seed(1), 0.0)
    assert float(loss.detach()) == pytest.approx(expected, abs=1e-5)
