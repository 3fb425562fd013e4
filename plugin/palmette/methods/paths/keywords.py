"""What each leaf is about, in the words of the documents and of the queries that go there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from palmette.lexical.terms import log_odds, merged, occurrences, strongest
from palmette.methods.paths.explanation import name_of

if TYPE_CHECKING:
    from palmette.methods.paths.module import Paths
    from palmette.pairs import EncodedPairs

__all__ = ["keywords_of", "leaf_terms"]

SAMPLE, PART = 50_000, 4096
"""Texts of a training whose words are read, and how many are routed at a time."""

Ints = NDArray[np.int64]
Listed = dict[str, list[tuple[str, float]]]


def leaf_terms(texts: Sequence[str], leaves: Ints, name: Callable[[int], str], *, terms: int = 8) -> Listed:
    """The terms of every leaf that has any: ``leaves`` [n] is that of each text."""
    spelled, text, term = occurrences(texts)
    totals, texts_in = np.bincount(term, minlength=len(spelled)), np.bincount(leaves)
    leaf, term, count = merged(leaves[text], term, np.ones(len(term), np.int64), len(spelled))
    weight = log_odds(count, texts_in[leaf], totals[term], len(texts))
    return {name(at): chosen for at, chosen in strongest(leaf, term, weight, spelled, terms)}


@torch.inference_mode()
def keywords_of(module: Paths, pairs: EncodedPairs) -> tuple[Listed, Listed]:
    """Of the training's documents and of its queries, by leaf (an even sample of very many)."""
    pairs = pairs.to(module.adapter.device)
    data, indexer = pairs.data, module.indexer

    def listed(rows: Ints, texts: Sequence[str], embedded: Tensor) -> Listed:
        parts = [embedded[torch.from_numpy(rows[at : at + PART])] for at in range(0, len(rows), PART)]
        leaves = torch.cat([indexer.beam(module.embed(part), 1).leaves[:, 0] for part in parts]).cpu().numpy()
        return leaf_terms(texts, leaves, lambda leaf: name_of(indexer.path_of(leaf)))

    rows = np.unique(np.linspace(0, len(data.corpus) - 1, min(len(data.corpus), SAMPLE)).astype(np.int64))
    documents = listed(rows, [data.corpus[row].content for row in rows.tolist()], pairs.documents)
    asked = np.unique(pairs.query_rows)[:SAMPLE]
    queries = listed(asked, [data.query_texts[row] for row in asked.tolist()], pairs.queries)
    return documents, queries
