"""Engines that look at a part of the vectors: FAISS's inverted lists and navigable graphs, as exact as those are.

    ivf                            lists around centroids, the nearest few of which are looked through
    ivf:nlist=256,nprobe=8         so many lists, so many looked through
    ivf:nlist=256,nprobe=8,pq=48   vectors compressed to 48 bytes
    hnsw:m=32,ef=64                a graph with so many links, searched with so many candidates

They serve inner products; all other probes, small segments and narrow filters are searched exactly. What they propose
is scored exactly, and as many documents come back as were asked for: where the lists looked through hold too few that
pass a filter, more lists are. A ``rough`` probe gets what FAISS finds at first, with FAISS's scores. Each segment of an
index has its own FAISS index, built when it is first searched and kept while the segment is; deleted documents are
passed over, and added ones are a segment of their own.
"""

from __future__ import annotations

import threading
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field

from palmette.config import Config
from palmette.errors import ConfigError, MissingExtraError
from palmette.search.block import Block, Hits, Proposals
from palmette.search.exact import ExactEngine
from palmette.search.fixed import as_floats
from palmette.search.kernels import Rows
from palmette.search.probe import Floats, Metric
from palmette.search.threads import get_threads

__all__ = ["ApproximateEngine", "Hnsw", "Ivf"]

FEW = 1024
"""Rows up to which a segment, or what a filter leaves of it, is searched exactly: as fast, and better."""
NARROW = 0.02
"""Share of a segment up to which the same goes for a filter."""
REFINED = 4
"""How many times ``k`` compressed vectors are proposed, since their order is rough."""
TRAINED = 39
"""Vectors for each list that clustering wants at least."""
WIDER = 4
"""Factor by which a search is widened that found too few."""
_GPU_MOST = 2048  # the largest k of FAISS on a GPU, and the most lists it looks through


class Ivf(Config):
    """Options of ``ivf``."""

    nlist: Annotated[int, Field(ge=1)] | None = None
    """Lists of a segment; ``None`` for 4 √N, and fewer where those would be nearly empty."""
    nprobe: Annotated[int, Field(ge=1)] = 16
    """Lists that a query looks through."""
    pq: Annotated[int, Field(ge=1)] | None = None
    """Bytes of a compressed vector, a divisor of its width; ``None`` for whole vectors."""

    def lists(self, rows: int) -> int:
        """Lists for so many rows."""
        return min(rows, self.nlist or max(1, min(round(4 * rows**0.5), rows // TRAINED)))


class Hnsw(Config):
    """Options of ``hnsw``."""

    m: Annotated[int, Field(ge=2)] = 32
    """Links of a vector."""
    ef: Annotated[int, Field(ge=2)] = 64
    """Candidates held while searching (at least as many as results)."""
    build: Annotated[int, Field(ge=2)] = 80
    """The same while building."""


class _Built(NamedTuple):
    index: Any
    on_gpu: Any | None


class ApproximateEngine:
    """Proposes rows by a FAISS index of each block."""

    approximate = True

    def __init__(self, options: Ivf | Hnsw) -> None:
        try:
            import faiss
        except ImportError as error:
            name = type(options).__name__.lower()
            raise MissingExtraError("faiss", "cpu", f"engine={name!r}") from error
        self.options = options
        self._faiss: Any = faiss
        self._gpu = bool(getattr(faiss, "get_num_gpus", int)()) and isinstance(options, Ivf)
        self._gpu_lock = threading.Lock()  # GPU indexes serve one search at a time
        self._exact = ExactEngine()
        self._plain: dict[int, Any] = {}  # parameters of a search without a filter, by its width

    def propose(self, block: Block, rows: Rows | None, queries: Floats, metric: Metric, k: int) -> Proposals:
        """Search ``rows`` (rising; ``None`` for all of them)."""
        if self._few(block, rows, queries, metric, k):
            return self._exact.propose(block, rows, queries, metric, k)
        count = len(block.keys) if rows is None else len(rows)
        built, selector = self._built(block), self._selector(block, rows)
        fetch = min(count, k * (REFINED if self._pq else 1))
        width, most = self._widths(built.index, fetch)
        found, _ = self._search(built, selector, queries, fetch, width)
        work = len(queries) * count * width // most
        while (short := (found >= 0).sum(axis=1) < k).any() and width < most:
            width = min(most, width * WIDER)
            found[short], _ = self._search(built, selector, queries[short], fetch, width)
            work += int(short.sum()) * count * width // most
        of, at = np.nonzero(found >= 0)
        proposals = Proposals(of, found[of, at], work, work * queries[0].nbytes)
        return self._completed(proposals, short, block, rows, queries, k) if short.any() else proposals

    def hits(self, block: Block, rows: Rows | None, queries: Floats, metric: Metric, k: int) -> Hits | None:
        """One search, no wider than the options say; none of compressed vectors, whose scores are rough."""
        if self._pq or self._few(block, rows, queries, metric, k):
            return None
        built, count = self._built(block), len(block.keys) if rows is None else len(rows)
        width, most = self._widths(built.index, k)
        found, scores = self._search(built, self._selector(block, rows), queries, k, width)
        return Hits(found, scores, len(queries) * count * width // most)

    @property
    def _pq(self) -> int | None:
        return getattr(self.options, "pq", None)

    def _few(self, block: Block, rows: Rows | None, queries: Floats, metric: Metric, k: int) -> bool:
        """Whether comparing all is as fast, or all that there is."""
        if (
            metric == "inner_product" and self._pq and queries.shape[1] % self._pq
        ):  # said before there are many rows
            raise ConfigError(
                f"engine ivf: pq={self._pq} does not divide vectors of {queries.shape[1]} numbers"
            )
        count = len(block.keys) if rows is None else len(rows)
        return metric != "inner_product" or count <= max(FEW, k, NARROW * len(block.keys))

    def _built(self, block: Block) -> _Built:
        return block.keep(self.options, lambda: self._build(as_floats(block.data)))

    def _widths(self, index: Any, fetch: int) -> tuple[int, int]:
        """How wide a search is at first, and at most."""
        if isinstance(self.options, Ivf):
            return min(self.options.nprobe, index.nlist), index.nlist
        return max(self.options.ef, fetch), max(fetch, index.ntotal)

    def _search(
        self, built: _Built, selector: Any, queries: Floats, fetch: int, width: int
    ) -> tuple[Rows, Floats]:
        """[Q, fetch] row numbers, −1 where fewer were found, and FAISS's scores."""
        kind, name = (
            (self._faiss.SearchParametersIVF, "nprobe")
            if isinstance(self.options, Ivf)
            else (self._faiss.SearchParametersHNSW, "efSearch")
        )
        rows: Rows
        scores: Floats
        if built.on_gpu is not None and selector is None and max(fetch, width) <= _GPU_MOST:
            with self._gpu_lock:
                scores, rows = built.on_gpu.search(queries, fetch, params=kind(**{name: width}))
            return rows, scores
        self._faiss.omp_set_num_threads(get_threads())
        if selector is not None:
            parameters = kind(**{name: width}, sel=selector)
        elif (parameters := self._plain.get(width)) is None:
            parameters = self._plain[width] = kind(**{name: width})
        scores, rows = built.index.search(queries, fetch, params=parameters)
        return rows, scores

    def _selector(self, block: Block, rows: Rows | None) -> Any:
        if rows is None:
            return None
        wanted = np.zeros(len(block.keys), bool)
        wanted[rows] = True
        return self._faiss.IDSelectorBitmap(np.packbits(wanted, bitorder="little"))

    def _completed(
        self, proposals: Proposals, short: Any, block: Block, rows: Rows | None, queries: Floats, k: int
    ) -> Proposals:
        """What a graph did not reach is searched for exactly."""
        at = np.flatnonzero(short)
        more = self._exact.propose(block, rows, queries[short], "inner_product", k)
        kept = ~short[proposals.of]
        return Proposals(
            np.concatenate([proposals.of[kept], at[more.of]]),
            np.concatenate([proposals.rows[kept], more.rows]),
            proposals.compared + more.compared,
            proposals.read + more.read,
        )

    def _build(self, data: Floats) -> _Built:
        faiss, options, width = self._faiss, self.options, data.shape[1]
        faiss.omp_set_num_threads(get_threads())
        if isinstance(options, Hnsw):
            index = faiss.IndexHNSWFlat(width, options.m, faiss.METRIC_INNER_PRODUCT)
            index.hnsw.efConstruction = options.build
        else:
            index = self._lists(options, width, len(data))
            index.cp.min_points_per_centroid = 1  # fewer are no reason to warn: the user chose
            index.train(data)
        index.add(data)
        return _Built(index, faiss.index_cpu_to_all_gpus(index) if self._gpu else None)

    def _lists(self, options: Ivf, width: int, rows: int) -> Any:
        faiss = self._faiss
        centroids, metric = faiss.IndexFlatIP(width), faiss.METRIC_INNER_PRODUCT
        if options.pq is None:
            return faiss.IndexIVFFlat(centroids, width, options.lists(rows), metric)
        index = faiss.IndexIVFPQ(centroids, width, options.lists(rows), options.pq, 8, metric)
        index.pq.cp.min_points_per_centroid = 1
        return index
