"""Towers, loss and finetuning against the paper's equations in NumPy; every coefficient differs from the others."""

from typing import Any

import numpy as np
import pytest
import torch

from palmette import FakeEncoder, TaxonomyModel
from palmette.encoder.cache import EncodingCache
from palmette.methods.base import FitInputs
from palmette.methods.taxonomy.config import TaxonomyConfig, TaxonomySearch
from palmette.methods.taxonomy.data import TaxonomyData
from palmette.methods.taxonomy.module import DualEncoder
from palmette.methods.taxonomy.training import RARITY, TaxonomyTask
from palmette.training.config import TrainingConfig
from support.reference import Doubles, randomise, weights_of
from support.taxonomies import zoo

T, STRENGTH, WIDTH, DIMENSION = 3.5, 0.7, 24, 6


def task_of(**options: Any) -> TaxonomyTask:
    """The zoo's task, its towers at random."""
    data = TaxonomyData.load(zoo())
    config = TaxonomyConfig(**{"dimension": DIMENSION, "multiplier": T, "correction": STRENGTH} | options)
    _, task = TaxonomyModel.task(config, FitInputs(data, FakeEncoder(WIDTH), EncodingCache()))
    randomise(task.module, 1, 0.4)
    return task


def towers(module: DualEncoder, inputs: Doubles, documents: Doubles) -> tuple[Doubles, Doubles]:
    """f(q) [Q, d] and g(d) [N, d]: a linear head each, and a row of its own for every known document."""
    w = weights_of(module)
    f = inputs @ w["query_head.linear.weight"].T + w["query_head.linear.bias"]
    g = documents @ w["document_head.linear.weight"].T + w["document_head.linear.bias"]
    return f, g + w["document_rows.rows"] if module.config.documents == "both" else g


def chances(task: TaxonomyTask) -> Doubles:
    """p(d), the chance that the draws of one random query hold a document."""
    matches, kind = task.train.matches, task.sampler.kind
    p = np.zeros(matches.size)
    for query in range(len(matches)):
        inside = slice(matches.starts[query], matches.starts[query + 1])
        rows, steps = matches.documents[inside], matches.distances[inside].astype(float)
        far = steps / steps.sum() if steps.sum() else np.zeros(len(steps))
        even = np.ones(len(rows)) / len(rows)
        p[rows] += {"every": np.ones(len(rows)), "regular": even, "heavy-tail": far}[kind]
    return p / (p.sum() if kind == "heavy-tail" else len(matches))


def loss_by_hand(task: TaxonomyTask, rows: np.ndarray, seed: int, multiplier: float, p: Doubles) -> float:
    """−log of a match's share of the batch, documents weighted by the inverse chance that a batch holds them."""
    config, matches, draw = task.module.config, task.train.matches, torch.Generator().manual_seed(seed)
    assert task.document_inputs is not None
    f, g = towers(task.module, task.train_inputs.double().numpy(), task.document_inputs.double().numpy())
    owner, drawn = task.sampler.draw(rows, draw)
    asked = rows[np.unique(owner)]
    columns, counts = np.unique(drawn, return_counts=True)
    held = 1 - (1 - p[columns]) ** len(asked)
    weights = counts ** (1 - config.correction) / held**config.correction
    total = 0.0
    for query in asked:
        scores = multiplier * g[columns] @ f[query]
        inside = slice(matches.starts[query], matches.starts[query + 1])
        answers = np.isin(columns, matches.documents[inside])
        if config.negatives == "all":  # the drawn one alone is an answer
            answers = columns == drawn[owner == np.flatnonzero(rows == query)[0]]
        wrong = (weights * np.exp(scores))[~answers].sum()
        if task.hard:
            every = multiplier * g @ f[query]
            others = np.setdiff1d(np.arange(len(g)), matches.documents[inside])
            wrong += np.exp(np.sort(every[others])[-task.hard :]).sum()
        each = -np.log(np.exp(scores[answers]) / (np.exp(scores[answers]) + wrong))
        counted = p[columns][answers] ** -RARITY
        total += (counted * each).sum() / counted.sum()
    return total / len(asked)


@pytest.mark.parametrize(
    "options",
    [
        {"hard": 0},
        {"hard": 3, "hard_share": 0.4},
        {"documents": "text", "hard": 0},
        {"sampling": "regular", "negatives": "all", "hard": 0},
        {"sampling": "regular", "negatives": "all", "hard": 0, "correction": 0.0},
    ],
    ids=str,
)
def test_the_loss_of_a_batch_is_its_formula(options: dict[str, Any]) -> None:
    task, rows = task_of(**options), np.arange(0, 60, 3)
    p = chances(task)
    np.testing.assert_allclose(np.exp(task.sampler.log_frequencies.numpy()), p, rtol=1e-5)
    loss = task.loss(task.module, rows, torch.Generator().manual_seed(9), 0.7)
    by_hand = loss_by_hand(task, rows, 9, T, p)
    assert float(loss.detach()) == pytest.approx(by_hand, abs=1e-5)
    if not options.get("correction", 1):
        return
    plain = task.module.config.replace(correction=0.0)
    task.module.config = plain
    assert abs(loss_by_hand(task, rows, 9, T, p) - by_hand) > 0.05, "the correction is felt"


def test_finetuning_has_its_own_temperature_and_rate() -> None:
    recipe = {"finetune_share": 0.2, "finetune_rate": 0.03, "finetune_multiplier": 1.75, "hard": 2}
    task, rows = task_of(recipe="pretrain-finetune", **recipe), np.arange(0, 60, 3)
    first, second = task.stages(TrainingConfig(steps=100, learning_rate=0.5))
    assert (first.training.steps, second.training.steps) == (80, 20)
    assert (first.training.learning_rate, second.training.learning_rate) == (0.5, pytest.approx(0.5 * 0.03))
    far = second.task
    assert isinstance(far, TaxonomyTask)
    p = np.maximum(chances(far), 1 / len(far.train.matches.documents))
    np.testing.assert_allclose(np.exp(far.sampler.log_frequencies.numpy()), p, rtol=1e-5)
    loss = far.loss(far.module, rows, torch.Generator().manual_seed(9), 0.99)
    assert float(loss.detach()) == pytest.approx(loss_by_hand(far, rows, 9, 1.75 * T, p), abs=1e-5)


def test_a_search_compares_the_same_towers_at_the_same_temperature() -> None:
    task = task_of()
    model, documents = TaxonomyModel(task.module.config, FakeEncoder(WIDTH), task.module), zoo()
    asked = model.encoder.encode_queries(["owl 3", "a bee"])
    f, g = towers(task.module, asked, model.encoder.encode([document.content for document in documents]))
    query = model.encode_queries(["owl 3", "a bee"], TaxonomySearch())["vector"]
    stored = model.encode_documents(documents)["vector"]
    np.testing.assert_allclose(query @ stored.T, T * f @ g.T, atol=1e-5)
