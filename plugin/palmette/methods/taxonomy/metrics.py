"""How well all matches of a query are found, near and far."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm.auto import trange

from palmette.methods.taxonomy.matches import Matches

__all__ = ["by_query", "found_matches", "nearest_wrong", "recall_by_distance", "slices", "summary"]

CELLS = 20_000_000
"""Scores that are held at a time."""


def found_matches(queries: Tensor, documents: Tensor, matches: Matches) -> NDArray[np.bool_]:
    """[P] whether each match is among the |S(q)| best documents of its query.

    Args:
        queries: [Q, d].
        documents: [N, d].
        matches: Of those queries.
    """
    found = []
    step = max(1, CELLS // len(documents))
    for start in range(0, len(queries), step):
        rows = np.arange(start, min(start + step, len(queries)))
        counts = torch.from_numpy(matches.counts[rows]).to(queries.device)
        places = matches.places(rows)
        wanted = torch.from_numpy(matches.documents[places].astype(np.int64)).to(queries.device)
        owner = torch.repeat_interleave(torch.arange(len(rows), device=queries.device), counts)
        scores = queries[start : start + step] @ documents.T  # [B, N]
        best = scores.topk(int(counts.max()), dim=1).values  # [B, s]
        last = best.gather(1, counts[:, None] - 1)[:, 0]  # [B]: the weakest score that is still among them
        found.append((scores[owner, wanted] >= last[owner]).cpu().numpy())
    return np.concatenate(found) if found else np.zeros(0, bool)


def nearest_wrong(
    queries: Tensor, documents: Tensor, matches: Matches, count: int, progress: bool | None = False
) -> Tensor:
    """[Q, count] the documents that score highest for each query and do not match it.

    Args:
        queries: [Q, d].
        documents: [N, d].
        matches: Of those queries.
        count: How many; at most as many as the query with most matches leaves.
        progress: A progress bar; ``None`` shows it on a terminal only.
    """
    found = []
    step = max(1, CELLS // len(documents))
    hidden = None if progress is None else not progress
    for start in trange(0, len(queries), step, desc="hard negatives", leave=False, disable=hidden):
        some = matches.take(np.arange(start, min(start + step, len(queries))))
        scores = queries[start : start + step] @ documents.T  # [B, N]
        owner, document = (
            torch.from_numpy(part).to(queries.device) for part in (some.owners, some.documents)
        )
        scores[owner, document.long()] = -torch.inf
        found.append(scores.topk(count, dim=1).indices)
    return torch.cat(found)


def slices(found: NDArray[np.bool_], distances: NDArray[np.int16]) -> dict[int, float]:
    """Recall by distance."""
    return {int(d): float(found[distances == d].mean()) for d in np.unique(distances)}


def by_query(found: NDArray[np.bool_], matches: Matches) -> NDArray[np.float64]:
    """Share of each query's matches that is found; queries without any are left out."""
    asking = matches.counts > 0
    hits = np.bincount(matches.owners, weights=found, minlength=len(matches))
    shares: NDArray[np.float64] = hits[asking] / matches.counts[asking]
    return shares


def recall_by_distance(queries: Tensor, documents: Tensor, matches: Matches) -> dict[str, float]:
    """Recall where k is the number of a query's matches: overall, the worst slice, and by distance.

    ``recall`` is that of a query and one of its matches drawn at random, as in the paper.
    """
    return summary(found_matches(queries, documents, matches), matches)


def summary(found: NDArray[np.bool_], matches: Matches) -> dict[str, float]:
    """:func:`recall_by_distance` of what :func:`found_matches` found."""
    by_distance = slices(found, matches.distances)
    named = {f"recall at distance {d}": value for d, value in by_distance.items()}
    overall = float(by_query(found, matches).mean())
    return {"recall": overall, "worst recall": min(by_distance.values()), **named}
