"""Hierarchical k-means and Gaussian mixtures: trees of clusters, split in two from the top down, as deep as the tree.

As in the paper: every node halves its documents; documents go greedily to one leaf; a query either follows the
better child (greedy) or goes to the leaf whose path adds up best, all nodes being evaluated (global); the documents
of that leaf are ranked by the encoder's cosine. The mixture's leaf probabilities are also compared as a tree's are, by
their overlap. Beyond the paper: as many leaves, best first, as hold a hundred documents.

Splits are numbered level by level as in a tree; split t has the children 2t + 1 and 2t + 2 (N splits, n texts).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from .bench import BLOCK, COLUMNS, Bench, Floats, K, Measured, Meter, Row, Rows, Scores, best, fold, overlaps

__all__ = ["gmm_representation", "search"]

SHORTLIST = 100
GMM_WIDTHS = (8, 32, 128)
"""Principal components that a mixture sees: the width is chosen on dev (diagonal covariances)."""
RIDGE = 1e-3
"""Added to the variances of a mixture's components, so that small nodes have any."""


@dataclass(frozen=True)
class Clusters:
    """What scores the two children of every split.

    Attributes:
        projection: [d, p], and the mean [d] taken off first; ``None`` for the embeddings as they are.
        centres: [N, 2, p].
        variances: [N, 2, p] of a mixture; ``None`` for k-means.
        priors: [N, 2] logarithms; −∞ for a child that does not exist.
    """

    depth: int
    projection: tuple[Floats, Floats] | None
    centres: Floats
    variances: Floats | None
    priors: Floats

    def project(self, x: Floats) -> Floats:
        """[n, d] → [n, p]."""
        if self.projection is None:
            return x
        mean, axes = self.projection
        return (x - mean) @ axes

    def scores(self, x: Floats) -> Floats:
        """[n, N, 2]: cosine to each child's centre, or the logarithm of its probability."""
        flat = self.centres.reshape(-1, self.centres.shape[2])  # [2N, p]
        seen = self.project(x)
        if self.variances is None:
            return (seen @ flat.T).reshape(len(x), -1, 2) + self.priors
        precision = 1 / self.variances.reshape(flat.shape)
        density = (
            seen @ (flat * precision).T
            - 0.5 * np.square(seen) @ precision.T
            - 0.5 * (np.square(flat) * precision - np.log(precision)).sum(1)
        ).reshape(len(x), -1, 2) + self.priors
        return density - np.logaddexp(density[..., :1], density[..., 1:])

    def paths(self, x: Floats) -> Iterator[Floats]:
        """Level by level the summed scores of its nodes: [n, 2^level]."""
        scores = self.scores(x)
        total = np.zeros((len(x), 1), np.float32)
        for level in range(self.depth):
            total = (total[..., None] + scores[:, 2**level - 1 : 2 ** (level + 1) - 1]).reshape(len(x), -1)
            yield total

    def greedy(self, x: Floats) -> Rows:
        """[n, depth]: the node of each level that following the better child leads to."""
        scores = self.scores(x)
        node = np.zeros(len(x), np.int64)
        found = []
        for level in range(self.depth):
            split = 2**level - 1 + node
            node = 2 * node + scores[np.arange(len(x)), split].argmax(1)
            found.append(node)
        return np.stack(found, axis=1)


def fit_clusters(x: Floats, depth: int, kind: Literal["k-means", "GMM"], seed: int, width: int) -> Clusters:
    """Split the documents [n, d] in two, and the halves again; a node of fewer than two stays whole."""
    projection = None
    if kind == "GMM":
        _, vectors = np.linalg.eigh(np.cov(x.T.astype(np.float64)))
        projection = (x.mean(0), np.ascontiguousarray(vectors[:, ::-1][:, :width], np.float32))
    splits, p = 2**depth - 1, min(width, x.shape[1]) if projection else x.shape[1]
    centres, priors = np.zeros((splits, 2, p), np.float32), np.full((splits, 2), -np.inf, np.float32)
    variances = np.ones((splits, 2, p), np.float32) if projection else None
    made = Clusters(depth, projection, centres, variances, priors)
    seen = made.project(x)
    members: list[Rows] = [np.arange(len(x))]
    for split in range(splits):
        here = members[split]
        points = seen[here]
        side = np.zeros(len(here), np.int64)
        priors[split, 0] = 0.0
        if len(np.unique(points, axis=0)) > 1:
            priors[split], centres[split], spread = _halve(points, kind, seed)
            if variances is not None:
                variances[split] = spread
            one = replace(
                made,
                projection=None,
                centres=centres[split : split + 1],
                variances=None if variances is None else variances[split : split + 1],
                priors=priors[split : split + 1],
            )
            side = one.scores(points)[:, 0].argmax(1)
        elif len(points):
            centres[split, 0] = points[0]
        members += [here[side == 0], here[side == 1]]
    return made


def _halve(points: Floats, kind: str, seed: int) -> tuple[Floats, Floats, Any]:
    """Log priors [2], centres [2, p] and variances [2, p] of the two halves."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        if kind == "k-means":
            centres = KMeans(2, n_init=3, random_state=seed).fit(points).cluster_centers_
            centres /= np.maximum(np.linalg.norm(centres, axis=1, keepdims=True), 1e-12)
            return np.zeros(2, np.float32), centres, None
        mixture = GaussianMixture(2, covariance_type="diag", reg_covar=RIDGE, random_state=seed)
        mixture.fit(points.astype(np.float64))
    return np.log(np.maximum(mixture.weights_, 1e-9)), mixture.means_, mixture.covariances_


class _Searcher:
    """Documents by leaf, at every level."""

    def __init__(self, bench: Bench, clusters: Clusters) -> None:
        self.bench, self.clusters = bench, clusters
        parts = [
            clusters.greedy(bench.documents[i : i + BLOCK]) for i in range(0, len(bench.documents), BLOCK)
        ]
        leaf_of = np.concatenate(parts)  # [n, depth]
        self.members = [
            np.split(np.argsort(leaf, kind="stable"), np.cumsum(np.bincount(leaf, minlength=2**level))[:-1])
            for level, leaf in enumerate(leaf_of.T, start=1)
        ]  # by level, then by leaf: its documents

    def rank(self, queries: Floats) -> dict[str, tuple[list[Rows], Floats]]:
        """Way of searching → rankings [Q, K] by level, and the mean share of documents compared by level."""
        depth, count = self.clusters.depth, len(self.bench.documents)
        ways = ("greedy leaf", "best leaf", f"{SHORTLIST} documents")
        ranks: dict[str, list[list[Rows]]] = {way: [[] for _ in range(depth)] for way in ways}
        visited = {way: np.zeros(depth) for way in ways}
        sizes = [np.array([len(rows) for rows in leaves]) for leaves in self.members]
        for start in range(0, len(queries), BLOCK):
            part = queries[start : start + BLOCK]
            similar = part @ self.bench.documents.T  # [B, n]
            first = self.clusters.greedy(part)
            for level, totals in enumerate(self.clusters.paths(part)):
                full = np.where(sizes[level] > 0, totals, -np.inf)  # an empty leaf answers nobody
                order = np.argsort(-full, axis=1, kind="stable")
                reached = np.cumsum(sizes[level][order], axis=1)
                for q in range(len(part)):
                    some = order[q, : int(np.searchsorted(reached[q], min(SHORTLIST, count))) + 1]
                    chosen = {ways[0]: first[q, level : level + 1], ways[1]: order[q, :1], ways[2]: some}
                    for way, leaves in chosen.items():
                        rows = np.sort(np.concatenate([self.members[level][leaf] for leaf in leaves]))
                        visited[way][level] += len(rows) / count
                        ranks[way][level].append(_ranked(rows, similar[q, rows]))
        shares = {way: values / len(queries) for way, values in visited.items()}
        return {way: ([np.stack(rows) for rows in ranks[way]], shares[way]) for way in ways}


def _ranked(rows: Rows, scores: Floats) -> Rows:
    found = np.full(K, -1, np.int64)
    if len(rows):
        kept = rows[best(scores[None], K)[0]]
        found[: len(kept)] = kept
    return found


def _measure(bench: Bench, clusters: Clusters, splits: dict[str, Floats], name: str) -> dict[str, Row]:
    searcher = _Searcher(bench, clusters)
    rows: dict[str, Scores] = {}
    for split, queries in splits.items():
        for way, (ranks, visited) in searcher.rank(queries).items():
            scores = rows.setdefault(f"{name}, {way}", {})
            scores[split] = {
                str(2 ** (level + 1)): bench.score({split: ranks[level]})[split]
                | {"visited": float(visited[level])}
                for level in range(clusters.depth)
            }
    return {label: Row(scores, "leaves") for label, scores in rows.items()}


_CHOSEN: dict[Any, int] = {}


def search(bench: Bench, seed: int, *, kind: Literal["k-means", "GMM"]) -> Measured:
    """Leaf search, reranked by the encoder's cosine."""
    width = 0
    if kind == "GMM":
        key = (id(bench), "search")
        if key not in _CHOSEN:
            dev = {"dev": bench.queries["dev"]}
            row = "GMM, best leaf"
            _CHOSEN[key] = max(
                GMM_WIDTHS,
                key=lambda p: _over(
                    _measure(bench, fit_clusters(bench.documents, bench.depth, kind, 0, p), dev, "GMM")[row]
                ),
            )
        width = _CHOSEN[key]
    meter = Meter()
    with meter.part("train"):
        clusters = fit_clusters(bench.documents, bench.depth, kind, seed, width)
    with meter.part("index"):
        clusters.greedy(bench.documents)
    notes = {"principal components": width} if width else {}
    return Measured(_measure(bench, clusters, bench.queries, kind), meter.seconds, meter.peak_mib, notes)


def _over(row: Row) -> float:
    """Mean dev nDCG@10 over the sizes."""
    return float(np.mean([values["ndcg@10"] for values in row.scores["dev"].values()]))


def gmm_representation(bench: Bench, seed: int, *, name: str) -> Measured:
    """Leaf probabilities of the mixture, compared by their overlap."""

    def leaves(clusters: Clusters, x: Floats) -> Floats:
        parts = (x[start : start + BLOCK] for start in range(0, len(x), BLOCK))
        return np.concatenate([np.exp(list(clusters.paths(part))[-1]) for part in parts])

    def row(clusters: Clusters, documents: Floats, splits: dict[str, Floats]) -> Row:
        queries = {split: leaves(clusters, x) for split, x in splits.items()}
        sizes = [size for size in COLUMNS if size <= 2**bench.depth]
        return Row(bench.judge(queries, documents, sizes, fold, overlaps))

    def dev_quality(width: int) -> float:
        clusters = fit_clusters(bench.documents, bench.depth, "GMM", 0, width)
        return _over(row(clusters, leaves(clusters, bench.documents), {"dev": bench.queries["dev"]}))

    key = (id(bench), "representation")
    if key not in _CHOSEN:
        _CHOSEN[key] = max(GMM_WIDTHS, key=dev_quality)
    meter = Meter()
    with meter.part("train"):
        clusters = fit_clusters(bench.documents, bench.depth, "GMM", seed, _CHOSEN[key])
    with meter.part("index"):
        documents = leaves(clusters, bench.documents)
    measured = row(clusters, documents, bench.queries)
    return Measured({name: measured}, meter.seconds, meter.peak_mib, {"principal components": _CHOSEN[key]})
