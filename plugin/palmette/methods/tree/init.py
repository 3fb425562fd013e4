"""Start of training: the space, the hyperplanes of the corpus's geometry, and the splits of the coarse levels.

With gentle slopes a node's probability is nearly linear in the embedding, so that nTVD is an L1 sketch of the space's
own distance: a tree of principal directions ranks about as well as the encoder before its first step. Three parts learn
ahead of the tree, in seconds on a CPU, each kept as far as held-out queries bear it out:

1. The space. A tree's thousand hyperplanes have far more to learn than the few hundred directions under them, so a
   linear map W learns first, by InfoNCE on the cosines of Wx / |Wx|.
2. Its pairs. Pairs of some documents need not say anything of others: on SQuAD, whose dev questions are of other
   articles, a map of 7,110 pairs brings dev's nDCG@10 from .769 to .770, one of as many synthetic pairs to .784. Where
   pairs do teach (SciFact, MedQuAD: .14 and more), no synthetic ones are made.
3. The coarse levels. Principal directions keep most of a distance, which is not what tells an answer from the rest
   best; so the splits of the first levels learn all these levels at once (https://arxiv.org/abs/2205.13147), and the
   deeper splits start from the principal directions of what those leave.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from palmette.data import RetrievalData, with_synthetic_queries
from palmette.errors import InputError, TrainingError
from palmette.maths import BLOCK, principal_directions, symmetric_info_nce
from palmette.methods.tree.config import TreeConfig
from palmette.methods.tree.module import Adapter, Tree, pooled
from palmette.methods.tree.training import SHRINKAGE, TreeTask
from palmette.training.config import TrainingConfig
from palmette.training.loop import Task, train
from palmette.training.pairs import TrainingPairs, top_documents

GROWTH = 1.414
"""Factor of the slopes from level to level. At √2 every direction counts alike: a node has half its parent's columns,
and columns add up by their squares."""
ENOUGH = 20
"""Held-out questions needed to compare two maps."""
# Many negatives at once: batches of 128 cost .015 and more of the adapted cosine's nDCG@10 where there are many labels.
ADAPTER = TrainingConfig(steps=500, batch_size=512, evaluate_every=100, clip=0.0, precision="float32")
ADAPTER_RATES, ADAPTER_EPOCHS = (1e-4, 1e-3), 300
COARSE_LEVELS = 5
COARSE = TrainingConfig(steps=300, batch_size=256, evaluate_every=100, clip=0.0, precision="float32")
COARSE_RATES, COARSE_EPOCHS = (1e-3, 3e-3), 100

Synthetic = Callable[[], TrainingPairs | None]


def start_task(
    config: TreeConfig, data: RetrievalData, encode: Callable[[RetrievalData], TrainingPairs], seed: int,
    progress: bool | None,
) -> TreeTask:  # fmt: skip
    """Task of a tree as training starts: its pairs, space, hyperplanes, coarse levels and multipliers."""
    pairs = encode(data)
    if len(pairs) < 2:
        held = 0 if pairs.dev is None else len(pairs.dev.queries)
        raise TrainingError(
            f"training needs at least 2 pairs of question and document, got {len(pairs)}, beside {held} held out to "
            "validate with: give more"
        )

    def synthetic() -> TrainingPairs | None:
        try:
            return encode(with_synthetic_queries(data, seed))
        except InputError:  # texts too short to make questions of
            return None

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        tree = Tree(config)
    if tree.adapter is not None:
        asks = data.labelled and config.learn_from == "auto"
        pairs = choose_pairs(tree.adapter, pairs, synthetic if asks else None, seed, progress)
    generator = torch.Generator().manual_seed(seed)
    initialise(tree, pairs.documents, generator)
    if config.start == "principal" and config.propagation != "none":
        trained = train_coarse_levels(tree, pairs, seed, progress)
        if trained:
            initialise(tree, pairs.documents, generator, trained)
    task = TreeTask(tree, pairs)
    task.init_multipliers(generator)
    if config.start == "principal" and not pairs.data.labelled:
        task.initial = {name: value.detach().clone() for name, value in tree.state_dict().items()}
    return task


# -- the space ------------------------------------------------------------------------------------------------


def choose_pairs(
    adapter: Adapter, pairs: TrainingPairs, synthetic: Synthetic | None, seed: int, progress: bool | None
) -> TrainingPairs:
    """Learn the map from the given pairs or, where these gain nothing, from synthetic ones; returns the pairs used.

    A map is the best of several looks at the held-out questions, so a gain over the identity must be two standard
    errors; between two maps chosen alike one is enough.
    """

    def per_query(represent: Adapter) -> NDArray[np.float64]:
        """nDCG@10 of the mapped cosines for every held-out question that has an answer."""
        assert pairs.dev is not None
        with torch.no_grad():
            mapped = pairs.held_out(lambda states: represent(pooled(states)))
            return pairs.dev.each(top_documents(*mapped, lambda q, d: q @ d.T))

    def is_gain(gain: NDArray[np.float64], errors: float) -> bool:
        return bool(gain.mean() > errors * gain.std() / np.sqrt(len(gain)))

    if synthetic is None or pairs.dev is None:
        fit_adapter(adapter, pairs, seed, progress)
        return pairs
    identity = per_query(adapter)
    fit_adapter(adapter, pairs, seed, progress)
    given = per_query(adapter)
    if len(identity) < ENOUGH or is_gain(given - identity, 2):
        return pairs
    others = synthetic()
    if others is None:
        return pairs
    other = Adapter(len(adapter.weight))
    fit_adapter(other, others, seed, progress)
    if not is_gain(per_query(other) - given, 1):
        return pairs
    adapter.load_state_dict(other.state_dict())
    return others


def fit_adapter(adapter: Adapter, pairs: TrainingPairs, seed: int, progress: bool | None) -> None:
    """Set the map to the best one for the held-out queries, half of the way for synthetic pairs."""
    if pairs.dev is None or len(pairs) < 2:
        return
    task = _AdapterTask(_LearningAdapter(adapter.weight), pairs)
    sweep_learning_rates(
        task, ADAPTER.replace(seed=seed), ADAPTER_RATES, epochs=ADAPTER_EPOCHS, label="Adapting the space",
        progress=progress,
    )  # fmt: skip
    adapter.weight.lerp_(task.module.weight.detach(), 1.0 if pairs.data.labelled else SHRINKAGE)


class _LearningAdapter(nn.Module):
    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.clone())  # [d, d]
        self.log_multiplier = nn.Parameter(torch.tensor(math.log(20.0)))

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(F.linear(x, self.weight), dim=1)  # [B, d]


@dataclass
class _AdapterTask(Task):
    module: _LearningAdapter
    pairs: TrainingPairs
    metric: str = "ndcg@10"

    def size(self) -> int:
        return len(self.pairs)

    def to(self, device: torch.device) -> None:
        self.pairs = self.pairs.to(device)

    def loss(
        self, module: nn.Module, rows: NDArray[np.int64], generator: torch.Generator, progress: float
    ) -> Tensor:
        queries, documents, known = self.pairs.batch(rows)  # [B, d], [B, d], [B, B]
        cosine = module(queries) @ module(documents).T
        return symmetric_info_nce(cosine * self.module.log_multiplier.exp(), known)

    def validate(self, module: nn.Module) -> dict[str, float]:
        return self.pairs.validate(module, lambda q, d: q @ d.T)


def sweep_learning_rates(
    task: Task,
    config: TrainingConfig,
    rates: Sequence[float],
    *,
    epochs: int,
    label: str,
    progress: bool | None,
) -> None:
    """Leave the best weights of all rates in ``task.module``: the initial ones if none improves on them."""
    config = config.replace(steps=min(config.steps, epochs * math.ceil(task.size() / config.batch_size)))

    def weights() -> dict[str, Tensor]:
        return {name: value.clone() for name, value in task.module.state_dict().items()}

    best, kept = -math.inf, (initial := weights())
    for rate in rates:
        task.module.load_state_dict(initial)
        # In this process alone: of several each comes to the same, and none waits for the others.
        how: dict[str, Any] = {"device": "cpu", "alone": True, "progress": progress}
        run = train(task, config.replace(learning_rate=rate), label=f"{label}, rate {rate:g}", **how)
        if run.metrics[task.metric] > best:
            best, kept = run.metrics[task.metric], weights()
    task.module.load_state_dict(kept)


# -- the hyperplanes ------------------------------------------------------------------------------------------


@torch.no_grad()
def initialise(tree: Tree, x: Tensor, generator: torch.Generator, trained: int = 0) -> None:
    """Set all hyperplanes but the first ``trained`` from the embeddings of all documents [N, d].

    Everything beyond hyperplanes starts at zero.
    """
    config = tree.config
    if tree.linear is not None:
        x = torch.cat([tree.embed(part.float().cpu()) for part in torch.split(x, BLOCK)])
        directions = _directions(config, x, generator, tree.linear.directions[:trained])  # [S, d]
        levels = torch.arange(1, config.scored + 1).double().log2().floor()  # [S] level of each node
        growth = torch.ones(config.scored) if config.propagation == "none" else GROWTH**levels
        tree.linear.slopes.copy_((config.sharpness * growth).float())
        tree.linear.directions.copy_(directions)
        centred = -directions @ x.mean(0)  # the average document goes either way
        tree.linear.offsets[trained:] = centred[trained:]
    if config.start == "principal":
        for part in (tree.beyond, tree.refine, tree.learned):
            if part is not None:
                part.get_parameter("out").zero_()


def _directions(config: TreeConfig, x: Tensor, generator: torch.Generator, first: Tensor) -> Tensor:
    """Directions [S, d], level by level, after the ``first`` [n, d] ones; all others have length 1.

    ``principal``: the principal directions of what those leave of the corpus, then random orthonormal bases, whose
    sketch of a distance is steadier than one of independent directions. ``random``: independent directions.
    """
    if config.start == "random":
        return F.normalize(torch.randn(config.scored, config.width, generator=generator))
    parts = [first, principal_directions(x, first)]
    while sum(map(len, parts)) < config.scored:
        parts.append(torch.linalg.qr(torch.randn(config.width, config.width, generator=generator))[0])
    return torch.cat(parts)[: config.scored]


# -- the coarse levels ----------------------------------------------------------------------------------------


def train_coarse_levels(tree: Tree, pairs: TrainingPairs, seed: int, progress: bool | None) -> int:
    """Train the splits of the first levels where that helps the held-out queries; number of splits trained."""
    levels, whole = min(COARSE_LEVELS, tree.config.depth), tree.linear
    if not levels or whole is None or pairs.dev is None or len(pairs) < 2:
        return 0
    shallow = {
        "depth": levels,
        "split": "linear",
        "propagation": "product",
        "schedule": "matryoshka",
        "dropout": 0.0,
    }
    coarse = Tree(
        tree.config.replace(**shallow)
    )  # the first levels as a tree of their own, in the same space
    coarse.lr_scale, coarse.adapter, own = {"log_multipliers": 5.0}, tree.adapter, coarse.linear
    assert own is not None
    n = len(own.offsets)
    own.load_state_dict({name: value[:n] for name, value in whole.state_dict().items()})
    task = TreeTask(coarse, replace(pairs, query_tokens=None, document_tokens=None))
    task.init_multipliers(torch.Generator().manual_seed(seed))
    sweep_learning_rates(
        task, COARSE.replace(seed=seed), COARSE_RATES, epochs=COARSE_EPOCHS, label="Training the upper splits",
        progress=progress,
    )  # fmt: skip
    if torch.equal(own.directions, whole.directions[:n]):
        return 0
    with torch.no_grad():
        whole.directions[:n], whole.offsets[:n] = own.directions, own.offsets
    return n
