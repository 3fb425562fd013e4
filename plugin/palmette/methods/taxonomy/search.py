"""Search in a taxonomy: nearest nodes by inner product, then a cut-off and an order.

A score alone does not say where matches end: queries differ in the scores and in the number of their matches. Training
lifts every match above log Σ exp of everything else, so relevance shows in the *gap* under a result,

    gap(s) = s − log Σ exp(s') over all nodes that score lower than s

    scores   9.1   8.8   8.5   3.2   3.0   2.9
    gap      −.3    .3   4.4   −.4    .1    −∞          the widest gap follows the last match

P(relevant) = σ(a · widest gap at or under the result + b · score + c), with a, b and c fitted after training.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from palmette.arrays import Floats, Rows
from palmette.arrays.solvers import minimise_convex, sigmoid
from palmette.methods.taxonomy.config import TaxonomySearch
from palmette.methods.taxonomy.hierarchy import Nodes
from palmette.search.plan import Candidates, SearchPlan
from palmette.store.protocols import View

NODE = "node"
"""Stored array of the node's row in the hierarchy."""

BEYOND = 64
"""Additional candidates for ``order="specific"``, which reorders them."""
LIKELY = 0.5
"""Smallest probability of a relevant document if ``order="specific"`` is given without ``cut``."""
MAX_GAP = 50.0
"""Limit of gaps, which can be infinite."""
TILT = 1e-3
"""Weight of the score in scaled scores, so that results with equal gaps keep their order."""
AT_ONCE = 64
"""Number of queries compared with all nodes at a time."""


def rank(
    nodes: Nodes,
    cutoff: RelevanceCutoff,
    view: View,
    plan: SearchPlan,
    candidates: Candidates,
    k: int,
    options: TaxonomySearch,
) -> Candidates:
    """Cut and order the candidates; scores in a hierarchy are scaled to 0 … 1."""
    queries, chains = plan.first.queries, nodes.hierarchy is not None
    if options.order == "specific":
        candidates = view.candidates(plan, k + BEYOND)
    if options.cut is not None:  # probabilities fall with scores, so the tail is cut
        keep = cutoff.likely(queries, candidates.scores, options.cut, chains=chains) & (candidates.keys >= 0)
        scores = np.where(keep, candidates.scores, -np.inf).astype(np.float32)
        candidates = replace(candidates, keys=np.where(keep, candidates.keys, -1), scores=scores)
    keys, scores = candidates.keys, candidates.scores  # [Q, n]
    if options.order == "specific":
        least = LIKELY if options.cut is None else options.cut
        filled, level = keys >= 0, np.full(keys.shape, -np.inf)
        # higher is more specific: depth in the hierarchy, or rarity as an answer
        specificity = -nodes.generality if nodes.hierarchy is None else nodes.hierarchy.depths.astype(np.float32)
        known = np.append(specificity, np.inf)  # the last is for documents that are no nodes (row −1)
        level[filled] = known[node_rows(view, keys[filled])]
        level[~cutoff.likely(queries, scores, least, chains=chains)] = -np.inf
        order = np.lexsort((-scores, -level, ~filled), axis=1)  # [Q, n]
        keys, scores = np.take_along_axis(keys, order, 1), np.take_along_axis(scores, order, 1)
    keys, scores = keys[:, :k], scores[:, :k]
    return replace(candidates, keys=keys, scores=cutoff.scaled(queries, scores) if chains else scores)


def node_rows(view: View, keys: Rows) -> Rows:
    """Row of the node of each document; −1 for unknown ones."""
    return view.rows(NODE, keys.tolist()).astype(np.int64)


def score_gaps(scores: Tensor, nodes: Tensor, depth: int) -> Tensor:
    """Return the widest gap at or under each document's score [Q, k], among the scores of all nodes [Q, N].

    It never falls as the score rises. Gaps are computed for the ``depth`` best nodes, as many as a query may match.
    """
    best = nodes.topk(min(depth, nodes.shape[1]), dim=1).values  # [Q, M]
    rest = nodes.masked_fill(nodes >= best[:, -1:], -torch.inf).logsumexp(1, keepdim=True)  # [Q, 1]
    rising = torch.cat([rest, best.flip(1)], dim=1)  # [Q, 1 + M]
    under = rising.logcumsumexp(1)  # [Q, 1 + M]: log of the sum of these and all lower ones

    def gap(upper: Tensor, lower: Tensor) -> Tensor:  # below the last node there is none
        return (upper - lower).masked_fill(lower == -torch.inf, -torch.inf)

    gaps = torch.cat([torch.full_like(rest, -torch.inf), gap(rising[:, 1:], under[:, :-1])], dim=1)
    widest = gaps.cummax(1).values  # [Q, 1 + M]
    at = torch.searchsorted(rising[:, 1:].contiguous(), scores.contiguous())  # [Q, k]: nodes that score lower
    return torch.maximum(widest.gather(1, at), gap(scores, under.gather(1, at)))


def fit_cut(gaps: Tensor, scores: Tensor, relevant: Tensor) -> Tensor:
    """Fit a ≥ 0, b ≥ 0 and c of P(relevant) = σ(a · gap + b · score + c) to judged results [Q, k]: [3]."""
    x = torch.stack([gaps.clamp(-MAX_GAP, MAX_GAP), scores]).double().flatten(1).cpu().numpy()  # [2, n]
    y = relevant.flatten().cpu().numpy().astype(np.float64)  # [n]
    spread = np.maximum(x.std(axis=1, ddof=1), 1e-6)
    x /= spread[:, None]

    inputs = np.vstack([x, np.ones(len(y))])  # [3, n]

    def derivatives(weights: NDArray[np.float64]) -> tuple[float, NDArray[np.float64], NDArray[np.float64]]:
        logits = weights @ inputs
        chance = sigmoid(logits)
        penalty = 1e-4 * (weights[0] + weights[1] + weights[2] ** 2)
        value = float(np.mean(np.logaddexp(0, logits) - y * logits) + penalty)
        gradient = inputs @ (chance - y) / len(y) + 1e-4 * np.array([1, 1, 2 * weights[2]])
        # two inputs that rise together leave their weights undecided: a little curvature decides
        curvature = (inputs * chance * (1 - chance)) @ inputs.T / len(y) + np.diag([1e-9, 1e-9, 2e-4])
        return value, gradient, curvature

    fitted = minimise_convex(derivatives, (1.0, 1.0, 0.0), (0.0, 0.0, -np.inf))
    return torch.from_numpy(np.append(fitted[:2] / spread, fitted[2])).float()


@dataclass(frozen=True)
class RelevanceCutoff:
    """Probabilities by the gaps among all nodes of the taxonomy, independent of an index's documents and filters."""

    nodes: Tensor
    """[N, d] embeddings of the nodes."""
    fitted: Tensor
    """[4] a, b and c of :func:`fit_cut`, and the depth of gaps."""

    @torch.inference_mode()
    def logits(self, queries: Floats, scores: Floats) -> Floats:
        """Return log-odds of relevance [Q, 1 + k]: of each query's best node, then of documents with scores [Q, k].

        ``queries`` are [Q, d]; −∞ marks missing documents.
        """
        table = np.zeros((len(scores), 1 + scores.shape[1]), np.float32)
        gap, score, offset, depth = self.fitted.tolist()
        for start in range(0, len(queries), AT_ONCE):
            part = slice(start, start + AT_ONCE)
            score_rows, query_rows = (torch.from_numpy(rows[part]).to(self.nodes.device) for rows in (scores, queries))
            every = query_rows @ self.nodes.T  # [q, N]
            score_rows = torch.cat([every.amax(1, keepdim=True), score_rows], dim=1)  # [q, 1 + k]
            gaps = score_gaps(score_rows, every, int(depth)).clamp(-MAX_GAP, MAX_GAP)
            logits = gap * gaps + score * score_rows.clamp(min=-1e9) + offset
            table[part] = logits.masked_fill(score_rows == -torch.inf, -torch.inf).cpu().numpy()
        return table

    def probability(self, queries: Floats, scores: Floats) -> Floats:
        """Return P(relevant) of documents with scores [Q, k] for queries [Q, d]; 0 for missing ones (−∞)."""
        return np.asarray(sigmoid(self.logits(queries, scores)[:, 1:]), np.float32)

    def likely(self, queries: Floats, scores: Floats, least: float, *, chains: bool) -> NDArray[np.bool_]:
        """Mark documents with scores [Q, k] that are relevant with a probability of at least ``least``.

        In a hierarchy (``chains``) the ancestors of a match are matches too, and an unusual query would keep the root
        only. So the limit is relative: ``least`` times the probability of the query's best node, if that is likely.
        """
        chances = np.asarray(sigmoid(self.logits(queries, scores)), np.float32)
        best, own = chances[:, :1], chances[:, 1:]
        best = np.maximum(best, own)
        return np.asarray((best >= least) & (own >= least * best) if chains else own >= least)

    def scaled(self, queries: Floats, scores: Floats) -> Floats:
        """Scale ``scores`` [Q, k] to 0 … 1 in the same order: ½ + ½ x / (1 + |x|), with log-odds x."""
        filled = scores > -np.inf
        x = np.where(filled, self.logits(queries, scores)[:, 1:] + TILT * np.where(filled, scores, 0.0), 0.0)
        return np.where(filled, 0.5 + 0.5 * x / (1 + np.abs(x)), -np.inf).astype(np.float32)
