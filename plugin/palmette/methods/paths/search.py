"""Leaves that a search visits, and recall against documents visited (Q queries, L leaves)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from palmette.arrays import Floats, Keys
from palmette.data.metrics import Judgements, score_ranks
from palmette.methods.paths.config import PathsSearch
from palmette.methods.paths.module import Paths
from palmette.store.protocols import View

LEAF = "leaves"
"""Stored array of the document's leaf."""
VISITED = "visited"
"""Evidence: leaves that the query visited; 0 if it looked everywhere."""
EXHAUSTIVE_UP_TO = 10_000
"""Documents up to which ``visit="auto"`` looks at all: faster than encoding the query."""
TOLERANCE = 0.01
"""Share of recall that ``visit="auto"`` may lose."""
BLIND = 0.2
"""Share that it visits if training held nothing out to learn it from."""
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 1.0)
"""Shares of the documents at which recall is measured."""
RECALL_DEPTH = 100
"""Documents per query of the recall curve."""
QUERIES_AT_ONCE = 64
"""Queries of the recall curve that are computed together."""

Curve = Mapping[float, Mapping[str, float]]


def auto_share(curve: Curve, documents: int) -> float:
    """Least share of documents at which held-out recall was nearly the full recall."""
    if documents <= EXHAUSTIVE_UP_TO:
        return 1.0
    if not curve:
        return BLIND
    good = (1 - TOLERANCE) * curve[max(curve)]["recall@100"]
    return min(share for share, row in curve.items() if row["recall@100"] >= good)


def leaves_to_visit(router: Paths, curve: Curve, view: View, vectors: Floats, k: int, options: PathsSearch) -> Keys:
    """Leaves of each query, likeliest first, padded with −1: [Q, β]; β = 0 to look everywhere.

    As many as the budget allows or the beam says; more where they hold fewer than ``k`` documents of the view. The
    leaves of a query do not depend on other queries.
    """
    # 1. The budget in documents; all of them are looked at in one piece.
    config, count, visit = router.config, len(view), options.visit
    if visit == "auto":
        visit = auto_share(curve, count)
    budget = visit * count if isinstance(visit, float) else visit
    if (options.beam is None and budget >= count) or not count:
        return np.zeros((len(vectors), 0), np.int64)
    # 2. A width of the beam that is most likely enough.
    filled = view.list_sizes(LEAF)
    sizes = np.pad(filled, (0, config.leaves - len(filled)))  # [L]
    entries = int(filled.sum())
    needed = min(k, entries)
    share = max(budget, needed) / max(1, entries)
    width = min(config.leaves, options.beam or int(1.5 * share * config.leaves) + 8)
    # 3. Each query's leaves within the budget; where the beam was too narrow for some, twice as wide.
    chosen: dict[int, Keys] = {}
    rows, x = np.arange(len(vectors)), torch.from_numpy(vectors).double()
    while len(rows):
        leaves = router.leaves_in_order(x[rows], width).leaves.numpy()  # [R, β]
        reached = np.cumsum(sizes[leaves], axis=1)
        beam = options.beam or np.maximum((reached <= budget).sum(axis=1), 1)
        looked = np.maximum(beam, (reached < needed).sum(axis=1) + 1)  # [R]
        done = (looked <= width) & ((reached[:, -1] > budget) | bool(options.beam)) | (width == config.leaves)
        chosen |= {row: leaves[at, : looked[at]] for at, row in enumerate(rows.tolist()) if done[at]}
        rows, width = rows[~done], min(2 * width, config.leaves)
    out = np.full((len(vectors), max(map(len, chosen.values()), default=0)), -1, np.int64)
    for row, leaves in chosen.items():
        out[row, : len(leaves)] = leaves
    return out


def recall_curve(
    queries: Tensor, documents: Tensor, order: Tensor, leaves: Tensor, judgements: Judgements, shares: Sequence[float]
) -> dict[float, dict[str, int | float]]:
    """Recall of queries [Q, m], and share of documents [N, m] really visited, by the share that may be visited.

    ``order`` [Q, L] are all leaves, each query's likeliest first, and ``leaves`` [N] those of the documents.
    """
    sizes = torch.bincount(leaves, minlength=order.shape[1])
    cumulative = sizes[order].cumsum(1)  # [Q, L]
    rank = torch.argsort(order, dim=1)  # [Q, L] place of each leaf
    budgets = [torch.inf if share == 1.0 else share * len(documents) for share in shares]
    looked = [(cumulative <= budget).sum(1).clamp(min=1) for budget in budgets]  # [Q] each
    ranks: list[list[Tensor]] = [[] for _ in shares]
    visited = [0.0 for _ in shares]
    for start in range(0, len(queries), QUERIES_AT_ONCE):
        part = slice(start, start + QUERIES_AT_ONCE)
        cosine = queries[part] @ documents.T  # [64, N]
        places = rank[part][:, leaves]  # [64, N]
        for at in range(len(shares)):
            inside = places < looked[at][part, None]
            top = cosine.masked_fill(~inside, -torch.inf).topk(min(RECALL_DEPTH, len(documents)), dim=1)
            ranks[at].append(top.indices.masked_fill(top.values == -torch.inf, -1))
            visited[at] += float(inside.sum())
    scored = [score_ranks(torch.cat(top).cpu().numpy(), judgements, ks=(10, RECALL_DEPTH)) for top in ranks]
    return {
        share: {
            "visited": visited_share / (len(queries) * len(documents)),
            **{name: scores[name] for name in ("recall@10", "recall@100", "ndcg@10")},
        }
        for share, visited_share, scores in zip(shares, visited, scored, strict=True)
    }
