"""Search in a taxonomy: nearest by inner product, then cut, closed under the edges, and ordered.

When to stop. A score alone does not say: queries differ in how high their matches score, and in how many they have.
Training lifts every match above the log of the summed exponentials of all that does not match. So relevance shows in
the *gap* under a result, g = s − log Σ exp(s') over all lower-scoring nodes: wide under the last match, narrow below
it. A document is as relevant as the widest gap at or under it is wide, and its score high; three numbers, fitted after
training, make that a probability.
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

VECTOR, NODE = "vector", "node"

BEYOND = 64
"""Candidates beyond ``k`` among which specific ones, and whole chains, are looked for."""
LIKELY = 0.5
"""Probability that counts as relevant when results are ordered without a ``cut``."""
MAX_GAP = 50.0
AT_ONCE = 64
"""Queries compared with all nodes at a time."""


# -- plan and rank ----------------------------------------------------------------------------------------------


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
    found: Candidates,
    k: int,
    options: TaxonomySearch,
) -> Candidates:
    """Cut, close and order the candidates."""
    queries = plan.first.queries
    if options.closed or options.order == "specific":
        found = view.candidates(plan, k + BEYOND)
    if options.cut is not None:  # probabilities fall with scores, so what goes stands at the end
        keep = (cutoff.probability(queries, found.scores) >= options.cut) & (found.keys >= 0)
        scores = np.where(keep, found.scores, -np.inf).astype(np.float32)
        found = replace(found, keys=np.where(keep, found.keys, -1), scores=scores)
    if options.closed:
        found = _close(nodes, view, plan, k, found)
    if options.order == "specific":
        likely = cutoff.probability(queries, found.scores) >= (LIKELY if options.cut is None else options.cut)
        held = found.keys >= 0  # [Q, n]
        level = np.zeros(found.keys.shape, np.float32)
        known = np.append(nodes.specificity, np.inf)  # the last is for documents that are no nodes (row −1)
        level[held] = known[_nodes(view, found.keys[held])]
        level = np.where(likely & held, level, -np.inf)
        order = np.lexsort((-found.scores, -level, ~held), axis=1)  # [Q, n]
        keys, scores = np.take_along_axis(found.keys, order, 1), np.take_along_axis(found.scores, order, 1)
        found = replace(found, keys=keys, scores=scores)
    return replace(found, keys=found.keys[:, :k], scores=found.scores[:, :k])


def _nodes(view: View, keys: Rows) -> Rows:
    """Row of the node of each document; −1 for unknown ones."""
    if not len(keys):
        return np.empty(0, np.int64)
    return np.asarray(view.rows(NODE, keys.tolist()), np.int64).reshape(-1)


def _close(nodes: Nodes, view: View, plan: SearchPlan, k: int, found: Candidates) -> Candidates:
    """Keep whole chains only, best first: a hit comes with its ancestors in the view, or not at all."""
    assert nodes.hierarchy is not None
    keys = view.keys() if plan.only is None else plan.only
    rows = _nodes(view, keys)
    key_of = np.full(len(nodes) + 1, -1, np.int64)  # the last is for documents that are no nodes (row −1)
    key_of[rows] = keys
    key_of[-1] = -1
    closed: list[tuple[Rows, Floats, dict[str, NDArray[Any]]]] = []
    for place, best in enumerate(found.keys):
        taken: dict[int, None] = {}
        for key in best[best >= 0].tolist():
            node = int(rows[np.searchsorted(keys, key)])
            above = key_of[nodes.hierarchy.ancestors(node)] if node >= 0 else np.empty(0, np.int64)
            fresh = [step for step in dict.fromkeys((key, *above[above >= 0].tolist())) if step not in taken]
            if len(taken) + len(fresh) <= k:
                taken |= dict.fromkeys(fresh)
            if len(taken) == k:
                break
        one = replace(plan.one_query(place), only=np.array(sorted(taken), np.int64))
        scored = view.candidates(one, max(1, len(taken)))
        closed.append((scored.keys[0, : len(taken)], scored.scores[0, : len(taken)], {}))
    return stack_rows(closed, replace(found, evidence={}))


# -- probability of relevance -----------------------------------------------------------------------------------


def score_gaps(scores: Tensor, nodes: Tensor, depth: int) -> Tensor:
    """Widest gap at or under each score; it never falls as the score rises.

    Args:
        scores: [Q, k] of documents, nodes or not.
        nodes: [Q, N] of all nodes.
        depth: Best nodes whose gaps are computed, as many as a query may match.

    Returns:
        [Q, k].
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
    """Logistic regression P(relevant) = σ(a · gap + b · score + c) on judged results, all [Q, k].

    Returns:
        [3] a and b, which are not negative, and c.
    """
    x = torch.stack([gaps.clamp(-MAX_GAP, MAX_GAP), scores]).double().flatten(1).cpu().numpy()  # [2, n]
    y = relevant.flatten().cpu().numpy().astype(np.float64)  # [n]
    spread = np.maximum(x.std(axis=1, ddof=1), 1e-6)
    x /= spread[:, None]

    def loss(weights: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        logits = weights[:2] @ x + weights[2]
        value = np.mean(np.logaddexp(0, logits) - y * logits) + 1e-4 * (
            weights[0] + weights[1] + weights[2] ** 2
        )
        wrong = (expit(logits) - y) / len(y)
        return float(value), np.append(x @ wrong + 1e-4, wrong.sum() + 2e-4 * weights[2])

    bounds = [(0, None), (0, None), (None, None)]
    found = minimize(loss, np.array([1.0, 1.0, 0.0]), jac=True, method="L-BFGS-B", bounds=bounds).x
    return torch.from_numpy(np.append(found[:2] / spread, found[2])).float()


@dataclass(frozen=True)
class RelevanceCutoff:
    """Probabilities from scores, by the gaps among all known nodes: independent of what an index holds or filters.

    Attributes:
        nodes: [N, d] embeddings of the nodes.
        fitted: [4] result of :func:`fit_cut`, and the depth of gaps.
    """

    nodes: Tensor
    fitted: Tensor

    @torch.inference_mode()
    def probability(self, queries: Floats, scores: Floats) -> Floats:
        """P(relevant) of documents that score [Q, k] for queries [Q, d]; 0 where there is none (−∞)."""
        found = np.zeros(scores.shape, np.float32)
        gap, score, offset, depth = self.fitted.tolist()
        for start in range(0, len(queries), AT_ONCE):
            part = slice(start, start + AT_ONCE)
            given = torch.from_numpy(scores[part]).to(self.nodes.device)
            gaps = score_gaps(
                given, torch.from_numpy(queries[part]).to(given.device) @ self.nodes.T, int(depth)
            )
            chance = torch.sigmoid(
                gap * gaps.clamp(-MAX_GAP, MAX_GAP) + score * given.clamp(min=-1e9) + offset
            )
            found[part] = chance.masked_fill(given == -torch.inf, 0.0).cpu().numpy()
        return found
