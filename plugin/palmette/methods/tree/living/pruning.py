"""Cut the lower levels that bring nothing (Q queries, N documents, K listed for a query, C leaves)."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from tqdm.auto import tqdm

from palmette.cache import EncodingCache
from palmette.config import check_range
from palmette.data import load_data
from palmette.errors import InputError
from palmette.losses import ntvd
from palmette.methods.tree.living.rows import LEAVES, changed, check_living, closed_over, judged, reshaped
from palmette.methods.tree.shape import Shape
from palmette.pairs import EncodedPairs

if TYPE_CHECKING:
    from pathlib import Path

    from palmette.methods.tree.model import TreeModel

__all__ = ["prune"]

_M = TypeVar("_M", bound="TreeModel")

LISTED = 100
"""Documents that matter to a query: those most like it."""


def prune(
    model: _M,
    data: Any,
    *,
    tolerance: float,
    columns: int | None,
    seed: int,
    cache: EncodingCache | str | Path | None,
    progress: bool | None,
) -> _M:
    """See :meth:`TreeModel.prune`."""
    config, tree = model.config, model.module
    check_living(config, "be pruned")
    check_range("prune", "tolerance", tolerance, 0, 1)
    check_range("prune", "columns", columns, 2, config.leaves, whole=True)
    loaded = load_data(data, seed=seed)
    if not loaded.qrels.get("dev"):
        raise InputError(
            f"{loaded.name} has no held-out queries to prune by: its splits with queries are "
            f"{sorted(name for name, judged in loaded.qrels.items() if judged)}; give a 'dev' split, or a 'train' "
            "split of some size to take one from"
        )
    asked = replace(loaded, qrels={"train": {}, "dev": loaded.qrels["dev"]}, remainders={})
    store = cache if isinstance(cache, EncodingCache) else EncodingCache(cache)
    how: dict[str, Any] = {"seed": seed, "progress": progress, "tokens": config.reads_tokens}
    pairs = EncodedPairs.encode(asked, model.encoder, store, **how).to(model.encoder.device)
    hidden, most = None if progress is None else not progress, len(config.shape.splits) - 1  # the root stays
    with torch.inference_mode(), tqdm(total=most.bit_length() + 1, desc="Pruning", disable=hidden) as bar:
        queries, documents = pairs.held_out(tree)  # [Q, C], [N, C]
        order = _order(config.shape, queries, documents)

        def quality(cut: int) -> float:
            """nDCG@10 without the first so many nodes of the order."""
            bar.update(1)
            q, d = (_folded(x, config.shape, order[cut:]) for x in (queries, documents))
            return pairs.judge(q, d, ntvd)["ndcg@10"]

        cut = config.leaves - columns if columns else _furthest(most, quality, 1 - tolerance)
    if not cut:
        return model
    depth, closed = closed_over(order[cut:])
    made = reshaped(tree, config.replace(depth=depth, closed=closed)).to(model.encoder.device)
    found = judged(made, pairs)[1]  # what was promised was promised of these questions
    return changed(model, made, pairs, {"change": "pruned"}, {name: found[name] for name in LEAVES})


def _furthest(most: int, quality: Callable[[int], float], share: float) -> int:
    """How many cuts, at most, keep a share of the uncut tree's quality; by bisection."""
    floor, good, bad = share * quality(0), 0, most + 1
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if quality(middle) >= floor else (good, middle)
    return good


def _order(shape: Shape, queries: Tensor, documents: Tensor) -> list[int]:
    """Split nodes in the order in which they are best cut, children before parents.

    To cut node t, whose children are leaves, adds Δ_t(q, d) = min(q_t, d_t) − Σ over children min(q_c, d_c) ≥ 0 to
    the overlap of a query and a document, whatever else is cut. So a node is worth the overlap that it takes
    away, on average over queries and the documents most like them. (Orders that ask whether it takes it from
    the right documents fit the queries they see, and did worse on others.)
    """
    many = min(LISTED, len(documents))
    near = [ntvd(part, documents).topk(many, dim=1).indices for part in torch.split(queries, 64)]
    listed = torch.cat(near)  # [Q, K]
    q, d = (torch.nn.functional.pad(x.double().cumsum(1), (1, 0)) for x in (queries, documents))  # [·, C + 1]
    spans, shared = _spans(shape), dict[int, float]()
    for node, (start, stop) in spans.items():
        q_t, d_t = q[:, stop] - q[:, start], d[:, stop] - d[:, start]
        shared[node] = float(torch.minimum(q_t[:, None], d_t[listed]).mean())
    splits = shape.splits.tolist()
    worth = {t: shared[t] - shared[2 * t + 1] - shared[2 * t + 2] for t in splits}
    whole = {
        t: sum(child in worth for child in (2 * t + 1, 2 * t + 2)) for t in splits
    }  # children that split
    ready = [(worth[t], t) for t in splits if not whole[t]]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, node = heapq.heappop(ready)
        order.append(node)
        parent = (node - 1) // 2
        if node:
            whole[parent] -= 1
            if not whole[parent]:
                heapq.heappush(ready, (worth[parent], parent))
    return order


def _spans(shape: Shape) -> dict[int, tuple[int, int]]:
    """Every node and its leaves, from – to."""
    spans: dict[int, tuple[int, int]] = {}
    for place, leaf in enumerate(shape.levels[-1].tolist()):
        node = leaf
        while True:
            spans[node] = (spans.get(node, (place, 0))[0], place + 1)
            if not node:
                break
            node = (node - 1) // 2
    return spans


def _folded(leaves: Tensor, shape: Shape, splits: list[int]) -> Tensor:
    """The leaves of the tree that has only these split nodes, as sums: [n, C] → [n, splits + 1]."""
    spans, smaller = _spans(shape), Shape(*closed_over(splits)).levels[-1].tolist()
    runs = torch.tensor([spans[node][1] - spans[node][0] for node in smaller], device=leaves.device)
    return leaves.new_zeros(len(leaves), len(runs)).index_add(1, torch.repeat_interleave(runs), leaves)
