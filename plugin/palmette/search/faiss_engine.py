"""The same answers from FAISS: flat indexes held in memory, on the GPU where FAISS finds one.

FAISS has no Σ min, but min(a, b) = (a + b − |a − b|) / 2: for rows of equal sum, the smallest L1 distance is
the largest overlap. Its results are proposals like any engine's, deep enough that no rounding hides a hit.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from palmette.errors import MissingExtraError
from palmette.search import kernels
from palmette.search.block import Block, Hits, Proposals
from palmette.search.exact import ExactEngine
from palmette.search.fixed import as_floats
from palmette.search.kernels import Rows
from palmette.search.probe import Floats, Metric
from palmette.search.threads import get_threads

__all__ = ["FaissEngine"]

_EXTRA = 16  # rows fetched beyond k at first
_UNEVEN = 1e-3  # row sums further apart than this are no distributions: L1 would rank them differently
_GPU_MOST = 2048  # the largest k of FAISS on a GPU


class FaissEngine:
    """Proposes rows by a flat FAISS index per block, built on first use and never written to disk."""

    approximate = False

    def __init__(self) -> None:
        try:
            import faiss
        except ImportError as error:
            raise MissingExtraError("faiss", "cpu", "engine='faiss'") from error
        self._faiss: Any = faiss
        self._gpu = bool(getattr(faiss, "get_num_gpus", int)())
        self._gpu_lock = threading.Lock()  # GPU indexes serve one search at a time
        self._exact = ExactEngine()

    def propose(self, block: Block, rows: Rows | None, queries: Floats, metric: Metric, k: int) -> Proposals:
        """Search ``rows`` (rising; ``None`` for all of them)."""
        count = len(block.keys) if rows is None else len(rows)
        slack = 2 * kernels.error_bound(queries, block.scale(metric), metric)  # [Q]
        if metric == "overlap":
            spread = block.keep("spread of sums", lambda: _spread(as_floats(block.data)))
            slack = slack + spread
            if spread > _UNEVEN:
                return self._exact.propose(block, rows, queries, metric, k)
        fetch = k + _EXTRA
        while fetch < count and not (self._gpu and (rows is not None or fetch > _GPU_MOST)):
            distances, found = self._search(block, rows, queries, metric, fetch)
            gap = np.abs(distances[:, k - 1] - distances[:, -1])  # [Q]
            if (gap > slack).all():
                work = count * len(queries)
                of = np.repeat(np.arange(len(queries)), fetch)
                return Proposals(of, found.reshape(-1), work, work * queries[0].nbytes)
            fetch *= 4
        return self._exact.propose(block, rows, queries, metric, k)

    def hits(self, block: Block, rows: Rows | None, queries: Floats, metric: Metric, k: int) -> Hits | None:
        """It looks everywhere."""
        return None

    def _search(
        self, block: Block, rows: Rows | None, queries: Floats, metric: Metric, fetch: int
    ) -> tuple[Floats, Rows]:
        index = block.keep(("faiss", metric), lambda: self._build(as_floats(block.data), metric))
        distances: Floats
        if self._gpu:
            with self._gpu_lock:
                distances, found = index.search(queries, fetch)
            return distances, found
        self._faiss.omp_set_num_threads(get_threads())
        parameters = None
        if rows is not None:
            wanted = np.zeros(len(block.keys), bool)
            wanted[rows] = True
            bitmap = np.packbits(wanted, bitorder="little")
            parameters = self._faiss.SearchParameters(sel=self._faiss.IDSelectorBitmap(bitmap))
        distances, found = index.search(queries, fetch, params=parameters)
        return distances, found

    def _build(self, data: Floats, metric: Metric) -> Any:
        kind = self._faiss.METRIC_L1 if metric == "overlap" else self._faiss.METRIC_INNER_PRODUCT
        index = self._faiss.IndexFlat(data.shape[1], kind)
        if self._gpu:
            index = self._faiss.index_cpu_to_all_gpus(index)
        index.add(data)
        return index


def _spread(data: Floats) -> float:
    sums = data.sum(axis=1, dtype=np.float64)
    return float(sums.max() - sums.min())
