"""Engines by name, and FAISS behind them for inner products: flat (CPU or GPU), or inverted lists.

    exact                    NumPy and numba
    faiss                    a flat index, on the GPU where FAISS finds one: the same results
    ivf                      lists around centroids, of which a query searches the nearest few
    ivf:nlist=256,nprobe=8   256 lists, 8 searched

Overlaps, small segments and narrow filters are searched exactly. FAISS only selects candidates; their scores are
computed exactly. Each segment has its own FAISS index, built at its first search and kept in memory, with deleted
documents masked.

A search always returns k documents. If a filter leaves FAISS too few, it is widened step by step:

    nprobe 16 → 64 → 256 → … all lists
"""

from __future__ import annotations

import threading
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field

from palmette.arrays import Floats, Rows, as_floats
from palmette.config import Config
from palmette.errors import ConfigError, MissingExtraError
from palmette.machine.threads import get_threads
from palmette.search.flat import Block, ExactEngine, Shortlist
from palmette.search.plan import Metric

ENGINE_NAMES = ("exact", "faiss", "ivf")
"""Names of engines, before their options."""
EXACT_UP_TO = 1024
"""Number of rows, after a filter, up to which a segment is searched exactly: as fast, and better."""
NARROW = 0.02
"""Share of a segment's rows up to which a filter's rest is searched exactly."""
TRAINED = 39
"""Smallest number of vectors per list for clustering."""
WIDENING = 4
"""Factor by which ``nprobe`` grows if too few documents were found."""
_EXTRA = 16  # additional rows of a flat search, so that rounding hides no hit
_GPU_MOST = 2048  # largest k and nprobe of FAISS on a GPU


class Ivf(Config):
    """Options of ``ivf``."""

    nlist: Annotated[int, Field(ge=1)] | None = None
    """Number of lists of a segment; ``None`` for 4 √N, and at most N / 39."""
    nprobe: Annotated[int, Field(ge=1)] = 16
    """Number of lists that a query searches."""


def engine_named(name: str) -> ExactEngine:
    """Make an engine from its name and options (see the top of the module)."""
    if not isinstance(name, str):
        raise ConfigError(f"an engine is given by its name, such as 'exact' or 'ivf', got {name!r}")
    kind, _, option_text = name.partition(":")
    if kind not in ENGINE_NAMES or (option_text and kind != "ivf"):
        raise ConfigError(f"unknown engine {name!r}. Engines: {', '.join(ENGINE_NAMES)}")
    if kind != "ivf":
        return ExactEngine() if kind == "exact" else FaissEngine()
    try:
        pairs = (part.split("=") for part in option_text.split(",") if part.strip())
        options = {key.strip(): int(value) for key, value in pairs}
    except ValueError as error:
        raise ConfigError(
            f"engine {name!r}: options are written name=number, as in 'ivf:nlist=256,nprobe=8'"
        ) from error
    return FaissEngine(Ivf(**options))


def is_engine(name: str) -> bool:
    """Return True for a name of an engine of this module, as opposed to another backend's."""
    return name.partition(":")[0] in ENGINE_NAMES


class _Built(NamedTuple):
    index: Any
    on_gpu: Any | None


class FaissEngine(ExactEngine):
    """Shortlists rows by a FAISS index of each block."""

    def __init__(self, lists: Ivf | None = None) -> None:
        self.lists, self.approximate = lists, lists is not None
        try:
            import faiss
        except ImportError as error:
            raise MissingExtraError("faiss", "cpu", f"engine={'ivf' if lists else 'faiss'!r}") from error
        self._faiss: Any = faiss
        self._gpu = bool(getattr(faiss, "get_num_gpus", int)())
        self._gpu_lock = threading.Lock()  # GPU indexes serve one search at a time

    def shortlist(self, block: Block, rows: Rows | None, queries: Floats, metric: Metric, k: int) -> Shortlist:
        """Select candidates among ``rows`` (ascending; ``None`` for all), widening while there are fewer than ``k``."""
        count = len(block.keys) if rows is None else len(rows)
        few = max(EXACT_UP_TO, k, NARROW * len(block.keys)) if self.approximate else k + _EXTRA
        if metric != "inner_product" or count <= few:
            return super().shortlist(block, rows, queries, metric, k)
        built = block.memo(("faiss", self.lists), lambda: self._build(as_floats(block.data)))
        if self.lists is None:
            return self._flat(built, block, rows, queries, k)
        width, most = min(self.lists.nprobe, built.index.nlist), int(built.index.nlist)
        row_numbers, _ = self._search(built, block, rows, queries, k, width)
        work = len(queries) * count * width // most
        while (short := (row_numbers >= 0).sum(axis=1) < k).any() and width < most:
            width = min(most, width * WIDENING)
            row_numbers[short], _ = self._search(built, block, rows, queries[short], k, width)
            work += int(short.sum()) * count * width // most
        of, at = np.nonzero(row_numbers >= 0)
        return Shortlist(of, row_numbers[of, at], work)

    def _flat(self, built: _Built, block: Block, rows: Rows | None, queries: Floats, k: int) -> Shortlist:
        """Fetch more than k rows; the last must score lower than the k-th by more than rounding can explain."""
        row_numbers, scores = self._search(built, block, rows, queries, k + _EXTRA)
        if (scores[:, k - 1] - scores[:, -1] > block.margin(queries, "inner_product")).all():
            of, work = np.repeat(np.arange(len(queries)), k + _EXTRA), len(queries) * len(block.keys)
            return Shortlist(of, row_numbers.reshape(-1), work)
        return super().shortlist(block, rows, queries, "inner_product", k)

    def _search(
        self, built: _Built, block: Block, rows: Rows | None, queries: Floats, fetch: int, width: int = 0
    ) -> tuple[Rows, Floats]:
        """Search by FAISS: return row numbers [Q, fetch] (−1 for missing ones) and FAISS's scores."""
        faiss, options = self._faiss, {}
        if rows is not None:
            mask = np.zeros(len(block.keys), bool)
            mask[rows] = True
            options["sel"] = faiss.IDSelectorBitmap(np.packbits(mask, bitorder="little"))
        kind = faiss.SearchParameters
        if self.lists is not None:
            kind, options["nprobe"] = faiss.SearchParametersIVF, width
        if built.on_gpu is not None and rows is None and max(fetch, width) <= _GPU_MOST:
            with self._gpu_lock:
                params = {"params": kind(**options)} if options else {}
                scores, row_numbers = built.on_gpu.search(queries, fetch, **params)
        else:
            faiss.omp_set_num_threads(get_threads())
            scores, row_numbers = built.index.search(queries, fetch, params=kind(**options))
        return row_numbers, scores

    def _build(self, data: Floats) -> _Built:
        """Build a FAISS index of vectors [N, d], flat or of lists."""
        faiss, (rows, width) = self._faiss, data.shape
        faiss.omp_set_num_threads(get_threads())
        index = faiss.IndexFlatIP(width)
        if self.lists is not None:
            lists = min(rows, self.lists.nlist or max(1, min(round(4 * rows**0.5), rows // TRAINED)))
            index = faiss.IndexIVFFlat(index, width, lists, faiss.METRIC_INNER_PRODUCT)
            index.cp.min_points_per_centroid = 1  # no warning: the user chose the number of lists
            index.train(data)
        index.add(data)
        return _Built(index, faiss.index_cpu_to_all_gpus(index) if self._gpu else None)
