"""Training: drawn matches against the other documents of a batch, in one stage or two; recall by distance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from palmette.machine.progress import progress_bar
from palmette.methods.taxonomy.data import DEV, Sampler, TrainingQueries
from palmette.methods.taxonomy.hierarchy import Matches
from palmette.methods.taxonomy.losses import column_weights, matches_softmax
from palmette.methods.taxonomy.module import DualEncoder
from palmette.methods.taxonomy.search import AT_ONCE, MAX_GAP, fit_cut, score_gaps
from palmette.training.config import TrainingConfig
from palmette.training.loop import Stage, Task, TrainingResult

RARITY = 0.05
"""A match counts in proportion to frequency^−RARITY: a little helps the exact match, which only its own query has."""
SURE = 2.0
"""Standard errors by which a gain must exceed luck."""
RESULTS_BEYOND_MATCHES = 64
"""Results beyond its matches that a query's cut-off is calibrated on."""
CELLS = 20_000_000
"""Scores held at a time."""


@dataclass
class TaxonomyTask(Task):
    """Softmax of drawn matches over the documents of the batch, weighted by how often they are drawn."""

    module: DualEncoder
    train: TrainingQueries
    dev: TrainingQueries
    sampler: Sampler
    multiplier: float
    train_inputs: Tensor  # [Q, w] encoder embeddings of the training queries, or [Q] rows of the lookup table
    dev_inputs: Tensor
    document_inputs: Tensor | None  # [N, w]; None for a lookup table
    hard: int = 0  # H, hard negatives per query
    progress: bool | None = False
    mined: NDArray[np.int64] | None = None  # [Q, H] hard negatives
    start: NDArray[np.float64] | None = None  # [dev] recall with the first weights, which may be the best
    metric = "sure recall"  # of all matches, less two standard errors of the gain over ``start``

    def size(self) -> int:
        """Number of training queries."""
        return len(self.train)

    def to(self, device: torch.device) -> None:
        """Move the towers' inputs."""
        self.train_inputs, self.dev_inputs = self.train_inputs.to(device), self.dev_inputs.to(device)
        self.document_inputs = None if self.document_inputs is None else self.document_inputs.to(device)

    def loss(
        self, module: nn.Module, rows: NDArray[np.int64], generator: torch.Generator, progress: float = 0.0
    ) -> Tensor:
        """Loss of a batch of queries and the matches drawn of them."""
        # 1. Matches drawn of each query, each document once, and hard negatives in the last steps.
        config, device = self.module.config, self.train_inputs.device
        owner, drawn = self.sampler.draw(rows, generator)
        rows = rows[np.unique(owner)]  # a query without draws is left out
        columns, target, counts = np.unique(drawn, return_inverse=True, return_counts=True)
        hard = self._hard_negatives(rows, progress)  # [B, H]
        # 2. Their embeddings by both towers.
        at = torch.from_numpy(np.concatenate([columns, hard.ravel()])).to(device)  # [U + BH]
        texts = None if self.document_inputs is None else self.document_inputs[at]
        queries, documents = module(self.train_inputs[torch.from_numpy(rows).to(device)], texts, at)
        documents, wrong = documents.split([len(columns), hard.size])  # [U, d], [BH, d]
        # 3. Weights of the columns, and which columns match which query.
        frequencies = self.sampler.log_frequencies[torch.from_numpy(columns)]  # [U]
        weights = column_weights(torch.from_numpy(counts).float(), frequencies, len(rows), config.correction)
        masked = config.negatives == "masked"
        row, column = self.train.matches.among(rows, columns) if masked else (np.arange(len(rows)), target)
        return matches_softmax(
            self.multiplier * queries,
            documents,
            weights.to(device),
            torch.from_numpy(row).to(device),
            torch.from_numpy(column).to(device),
            torch.exp(-RARITY * frequencies).to(device),
            wrong.view(*hard.shape, -1) if hard.size else None,
        )

    def _hard_negatives(self, rows: NDArray[np.int64], progress: float) -> NDArray[np.int64]:
        """[B, H] best-scoring wrong answers of some training queries; H = 0 before the last steps."""
        if not self.hard or progress < 1 - self.module.config.hard_share:
            return np.zeros((len(rows), 0), np.int64)
        if self.mined is None:
            with torch.no_grad():
                queries = torch.cat([*map(self.module.queries, torch.split(self.train_inputs, 16_384))])
                wrong = nearest_wrong(queries, self.documents(), self.train.matches, self.hard, self.progress)
            self.mined = wrong.cpu().numpy()
        return self.mined[rows]

    def documents(self) -> Tensor:
        """[N, d] embeddings of all documents."""
        rows, texts = torch.arange(self.train.matches.size).to(self.train_inputs.device), self.document_inputs
        parts = torch.split(rows, 16_384)
        return torch.cat([self.module.documents(None if texts is None else texts[at], at) for at in parts])

    def found(self) -> NDArray[np.bool_]:
        """[P] true for each match of the validation queries that is found among all documents."""
        return found_matches(self.module.queries(self.dev_inputs), self.documents(), self.dev.matches)

    @torch.no_grad()
    def validate(self, module: nn.Module) -> dict[str, float]:
        """Recall by distance on the validation queries, against all documents."""
        if not len(self.dev):
            return {}
        retrieved, matches = self.found(), self.dev.matches
        metrics, recall = training_summary(retrieved, matches), recall_by_query(retrieved, matches)
        # Few queries do not tell luck from learning: with them the first weights stay the best.
        luck = 0.0 if self.start is None else SURE * float((recall - self.start).std()) / len(recall) ** 0.5
        return {**metrics, "sure recall": metrics["recall"] - luck}

    def stages(self, training: TrainingConfig) -> list[Stage]:
        """Train once, or (the paper's recipe) finetune gently on far matches at the end."""
        config = self.module.config
        if config.recipe == "joint":
            return [Stage(self, training)]
        far = replace(
            self,
            sampler=Sampler(self.train.matches, "heavy-tail"),
            multiplier=self.multiplier * config.finetune_multiplier,
            hard=0,
        )
        late = round(training.steps * config.finetune_share)
        gentle = training.replace(steps=late, learning_rate=training.learning_rate * config.finetune_rate)
        return [Stage(self, training.replace(steps=training.steps - late)), Stage(far, gentle, "finetune")]

    def finish(self, result: TrainingResult) -> TrainingResult:
        """Complete the module."""
        return replace(result, metrics={**result.metrics, **self.calibrate()})

    @torch.no_grad()
    def calibrate(self) -> dict[str, float]:
        """Store the nodes' embeddings and the calibration; measure the cut-off on queries it was not fitted to."""
        # 1. The nodes' embeddings, and queries to judge by: held-out ones, or training queries where these are few.
        module, nodes = self.module, self.documents()
        if len(module.vectors):
            module.vectors.copy_(nodes)
        queries, inputs = self.dev, self.dev_inputs
        if len(queries) < 20:
            rows = np.linspace(0, self.size() - 1, min(DEV, self.size())).astype(np.int64)
            queries, inputs = self.train.take(rows), self.train_inputs[torch.from_numpy(rows).to(inputs.device)]
        matches, depth = queries.matches, 2 * int(self.train.matches.counts.max())
        k = min(len(nodes), int(matches.counts.max()) + RESULTS_BEYOND_MATCHES)
        # 2. Gap and score of each query's best nodes, and which of them match it.
        parts = []
        for vectors in torch.split(module.queries(inputs) * module.config.multiplier, AT_ONCE):
            every = vectors @ nodes.T  # [B, N]
            best = every.topk(k, dim=1)
            parts.append((score_gaps(best.values, every, depth), *best))
        gap, score, place = map(torch.cat, zip(*parts, strict=True))  # [Q, k]
        keys = matches.owners * matches.size + matches.documents
        positions = np.arange(len(queries))[:, None] * matches.size + place.cpu().numpy()
        relevant = torch.from_numpy(np.isin(positions, keys)).to(gap.device)
        # 3. Precision and recall on every other query, of a cut fitted to the rest.
        fitted = fit_cut(gap[::2], score[::2], relevant[::2]).tolist()
        accepted = fitted[0] * gap[1::2].clamp(-MAX_GAP, MAX_GAP) + fitted[1] * score[1::2] + fitted[2] >= 0
        right = float((accepted & relevant[1::2]).sum())
        # 4. The cut that is kept, fitted to all of them.
        module.cut[:3] = fit_cut(gap, score, relevant)
        module.cut[3] = depth
        answers = max(1, int(matches.counts[1::2].sum()))
        return {"cut precision": right / max(1, int(accepted.sum())), "cut recall": right / answers}


# -- recall by distance -----------------------------------------------------------------------------------------


def found_matches(queries: Tensor, documents: Tensor, matches: Matches) -> NDArray[np.bool_]:
    """[P] true for each match of the queries [Q, d] among the |S(q)| best documents [N, d] of its query."""
    retrieved = [np.zeros(0, bool)]
    for scores, part in _scores_and_matches(queries, documents, matches):
        counts = torch.from_numpy(part.counts).to(scores.device)
        best = scores.topk(int(counts.max()), dim=1).values  # [B, s]
        last = best.gather(1, counts[:, None] - 1)[part.owners, 0]  # [P]: the weakest score still among them
        retrieved.append((scores[part.owners, part.documents] >= last).cpu().numpy())
    return np.concatenate(retrieved)


def nearest_wrong(
    queries: Tensor, documents: Tensor, matches: Matches, count: int, progress: bool | None = False
) -> Tensor:
    """[Q, count] documents that score highest for each query [Q, d] among [N, d] and do not match it."""
    rows = []
    for scores, part in _scores_and_matches(queries, documents, matches, progress):
        scores[part.owners, part.documents] = -torch.inf
        rows.append(scores.topk(count, dim=1).indices)
    return torch.cat(rows)


def _scores_and_matches(
    queries: Tensor, documents: Tensor, matches: Matches, progress: bool | None = False
) -> Iterator[tuple[Tensor, Matches]]:
    """Scores [B, N] and matches of B queries at a time, so that no more than ``CELLS`` scores are in memory."""
    step = max(1, CELLS // len(documents))
    starts = range(0, len(queries), step)
    for start in progress_bar(progress, starts, desc="hard negatives", leave=False):
        part = queries[start : start + step]
        yield part @ documents.T, matches.take(np.arange(start, start + len(part)))


def recall_by_query(retrieved: NDArray[np.bool_], matches: Matches) -> NDArray[np.float64]:
    """Share of each query's matches that is found; queries without any are left out.

    Of three matches, two of query 0 and one of query 1, ``retrieved`` = [True, False, True] gives [½, 1].
    """
    found, has_matches = np.bincount(matches.owners, retrieved, len(matches)), matches.counts > 0
    return np.asarray(found[has_matches] / matches.counts[has_matches])


def recall_by_distance(retrieved: NDArray[np.bool_], distances: NDArray[np.int16]) -> dict[int, float]:
    """Share of matches found, by their distance: 0 is the query's own node, 1 its parents, and so on."""
    return {int(d): float(retrieved[distances == d].mean()) for d in np.unique(distances)}


def training_summary(retrieved: NDArray[np.bool_], matches: Matches) -> dict[str, float]:
    """Recall where each query q retrieves as many documents as it has matches, k = |S(q)|.

    ``recall`` is the mean over queries, which is the paper's figure: the chance to find a match drawn at random from a
    random query. ``worst recall`` is that of the distance with the lowest recall.
    """
    by_distance = recall_by_distance(retrieved, matches.distances)
    named = {f"recall at distance {d}": value for d, value in by_distance.items()}
    overall = float(recall_by_query(retrieved, matches).mean())
    return {"recall": overall, "worst recall": min(by_distance.values()), **named}
