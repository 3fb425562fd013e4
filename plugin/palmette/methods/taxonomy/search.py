"""Search in a taxonomy: nearest by inner product, then cut, closed under the edges, and ordered.

A score alone does not say when to stop: queries differ in how high their matches score, and in how many they have.
Training lifts every match above log Σ exp of all that does not match, so relevance shows in the *gap* under a result,
g = s − log Σ exp(s') over all lower-scoring nodes: wide under the last match, narrow below it. Three numbers, fitted
after training, make a probability of a document's score and the widest gap at or under it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit
from torch import Tensor

from palmette.arrays import Floats, Rows
from palmette.methods.taxonomy.config import TaxonomySearch
from palmette.methods.taxonomy.hierarchy import Nodes
from palmette.search.plan import Candidates, Score, SearchPlan, View, stack_rows

VECTOR = "vector"
"""Stored array of the node's vector."""
NODE = "node"
"""Stored array of the node's row in the hierarchy."""

BEYOND = 64
"""Candidates beyond ``k`` among which specific ones, and whole chains, are looked for."""
LIKELY = 0.5
"""Probability that counts as relevant when results are ordered without a ``cut``."""
MAX_GAP = 50.0
TILT = 1e-3
"""Part of a score in its log-odds, so that equal gaps keep the order of their scores."""
AT_ONCE = 64
"""Queries compared with all nodes at a time."""


def plan(nodes: Nodes, queries: Floats, options: TaxonomySearch, view: View) -> SearchPlan:
    """Inner products with all documents, or with those below a node."""
    only = None
    if options.within is not None:
        assert nodes.hierarchy is not None
        below = nodes.hierarchy.descendants(nodes.hierarchy.row(options.within))
        keys = view.keys()
        only = keys[np.isin(_nodes(view, keys), below)]
    return SearchPlan(Score(VECTOR, queries), only=only)


def rank(
    nodes: Nodes,
    cutoff: RelevanceCutoff,
    view: View,
    plan: SearchPlan,
    candidates: Candidates,
    k: int,
    options: TaxonomySearch,
) -> Candidates:
    """Cut, close and order the candidates; scores in a hierarchy are scaled to 0 … 1."""
    queries, chains = plan.first.queries, nodes.hierarchy is not None
    if options.closed or options.order == "specific":
        candidates = view.candidates(plan, k + BEYOND)
    if options.cut is not None:  # probabilities fall with scores, so what goes stands at the end
        keep = cutoff.likely(queries, candidates.scores, options.cut, chains=chains) & (candidates.keys >= 0)
        scores = np.where(keep, candidates.scores, -np.inf).astype(np.float32)
        candidates = replace(candidates, keys=np.where(keep, candidates.keys, -1), scores=scores)
    if options.closed:
        candidates = _close(nodes, view, plan, k, candidates)
    keys, scores = candidates.keys, candidates.scores  # [Q, n]
    if options.order == "specific":
        least = LIKELY if options.cut is None else options.cut
        filled, level = keys >= 0, np.full(keys.shape, -np.inf)
        known = np.append(nodes.specificity, np.inf)  # the last is for documents that are no nodes (row −1)
        level[filled] = known[_nodes(view, keys[filled])]
        level[~cutoff.likely(queries, scores, least, chains=chains)] = -np.inf
        order = np.lexsort((-scores, -level, ~filled), axis=1)  # [Q, n]
        keys, scores = np.take_along_axis(keys, order, 1), np.take_along_axis(scores, order, 1)
    keys, scores = keys[:, :k], scores[:, :k]
    return replace(candidates, keys=keys, scores=cutoff.scaled(queries, scores) if chains else scores)


def _nodes(view: View, keys: Rows) -> Rows:
    """Row of the node of each document; −1 for unknown ones."""
    return view.rows(NODE, keys.tolist()).astype(np.int64)


def _close(nodes: Nodes, view: View, plan: SearchPlan, k: int, candidates: Candidates) -> Candidates:
    """Keep whole chains only, best first: a hit comes with its ancestors in the view, or not at all."""
    assert nodes.hierarchy is not None
    keys = view.keys() if plan.only is None else plan.only
    rows = _nodes(view, keys)
    key_of = np.full(len(nodes) + 1, -1, np.int64)  # the last is for documents that are no nodes (row −1)
    key_of[rows] = keys
    key_of[-1] = -1
    closed: list[tuple[Rows, Floats, dict[str, NDArray[Any]]]] = []
    for place, best in enumerate(candidates.keys):
        members: dict[int, None] = {}
        for key in best[best >= 0].tolist():
            node = int(rows[np.searchsorted(keys, key)])
            above = key_of[nodes.hierarchy.ancestors(node)].tolist() if node >= 0 else []
            chain = dict.fromkeys([key, *(step for step in above if step >= 0)])
            if len(members | chain) <= k:
                members |= chain
            if len(members) == k:
                break
        query_plan = replace(plan.one_query(place), only=np.array(sorted(members), np.int64))
        scored = view.candidates(query_plan, max(1, len(members)))
        closed.append((scored.keys[0, : len(members)], scored.scores[0, : len(members)], {}))
    return stack_rows(closed, candidates)


def score_gaps(scores: Tensor, nodes: Tensor, depth: int) -> Tensor:
    """Widest gap at or under each score [Q, k] of documents, among the scores of all nodes [Q, N]: [Q, k].

    It never falls as the score rises. Gaps are computed under the ``depth`` best nodes, as many as a query may match.
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
    """Fit P(relevant) = σ(a · gap + b · score + c) to judged results [Q, k]; a and b are not negative: [3]."""
    x = torch.stack([gaps.clamp(-MAX_GAP, MAX_GAP), scores]).double().flatten(1).cpu().numpy()  # [2, n]
    y = relevant.flatten().cpu().numpy().astype(np.float64)  # [n]
    spread = np.maximum(x.std(axis=1, ddof=1), 1e-6)
    x /= spread[:, None]

    def loss(weights: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        logits = weights[:2] @ x + weights[2]
        penalty = 1e-4 * (weights[0] + weights[1] + weights[2] ** 2)
        value = np.mean(np.logaddexp(0, logits) - y * logits) + penalty
        wrong = (expit(logits) - y) / len(y)
        return float(value), np.append(x @ wrong + 1e-4, wrong.sum() + 2e-4 * weights[2])

    bounds = [(0, None), (0, None), (None, None)]
    fitted = minimize(loss, np.array([1.0, 1.0, 0.0]), jac=True, method="L-BFGS-B", bounds=bounds).x
    return torch.from_numpy(np.append(fitted[:2] / spread, fitted[2])).float()


@dataclass(frozen=True)
class RelevanceCutoff:
    """Probabilities from scores, by the gaps among all known nodes: independent of what an index holds or filters."""

    nodes: Tensor
    """[N, d] embeddings of the nodes."""
    fitted: Tensor
    """[4] result of :func:`fit_cut`, and the depth of gaps."""

    @torch.inference_mode()
    def logits(self, queries: Floats, scores: Floats) -> Floats:
        """Log-odds of relevance: of each query's best node, then of documents that score [Q, k]: [Q, 1 + k].

        Queries are [Q, d]; −∞ where there is no document.
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
        """P(relevant) of documents that score [Q, k] for queries [Q, d]; 0 where there is none (−∞)."""
        return np.asarray(expit(self.logits(queries, scores)[:, 1:]), np.float32)

    def likely(self, queries: Floats, scores: Floats, least: float, *, chains: bool) -> NDArray[np.bool_]:
        """Mark documents with scores [Q, k] that are relevant with a probability of at least ``least``.

        In a hierarchy (``chains``) the ancestors of a match are matches too. So the probability that counts is the one
        given the query's best node, where that is likely itself: else an unusual query would keep the root alone.
        """
        chances = np.asarray(expit(self.logits(queries, scores)), np.float32)
        best, own = chances[:, :1], chances[:, 1:]
        best = np.maximum(best, own)
        return np.asarray((best >= least) & (own >= least * best) if chains else own >= least)

    def scaled(self, queries: Floats, scores: Floats) -> Floats:
        """Scores from 0 to 1 in the order of ``scores`` [Q, k]: ½ where relevance is even, level where it is clear."""
        filled = scores > -np.inf
        x = np.where(filled, self.logits(queries, scores)[:, 1:] + TILT * np.where(filled, scores, 0.0), 0.0)
        return np.where(filled, 0.5 + 0.5 * x / (1 + np.abs(x)), -np.inf).astype(np.float32)
