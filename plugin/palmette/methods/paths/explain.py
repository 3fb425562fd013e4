"""Explanation of a hit by its leaf, and what the leaves are about (n texts)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from palmette.arrays import evenly_spaced
from palmette.errors import CheckpointError
from palmette.lexical.terms import add_counts, count_terms, divergence, top_terms
from palmette.methods.base import VECTOR
from palmette.methods.paths.module import Paths
from palmette.methods.paths.search import LEAF, VISITED
from palmette.types import Explanation, Part

REPORT = "leaves.json"
"""Checkpoint file of the report."""
SHOWN_LEAVES = 5
"""Leaves listed where no search says how many were visited."""
TERMS_OF_A_LEAF = 3
"""Terms of a leaf in the sentence."""
TEXTS_READ_FOR_TERMS = 50_000
"""Texts whose words are read for the leaves' terms."""

Figures = dict[str, int | float]
Name = Annotated[str, Field(pattern=r"^\d+(\.\d+)*$")]
LeafTerms = dict[Name, list[tuple[Annotated[str, Field(min_length=1, max_length=80)], int | float]]]
"""Leaf, such as ``3.17`` → its terms with their weights, strongest first."""


class IndexReport(BaseModel):
    """Facts of a training besides weights."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    curve: dict[float, Figures] = {}
    """Share of the documents that may be visited → recall on held-out queries; empty without any."""
    documents: LeafTerms = {}
    """What each leaf is about, in the words of its documents."""

    def to_json(self) -> bytes:
        """Content of the checkpoint file."""
        values = self.model_dump(mode="json")
        return json.dumps(values, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()

    @classmethod
    def from_json(cls, data: bytes) -> IndexReport:
        """Report of a checkpoint file."""
        try:
            values = json.loads(data)
            for gone in ("load", "queries"):  # in reports of earlier versions
                values.pop(gone, None)
            if missing := cls.model_fields.keys() - values.keys():
                raise ValueError(f"without {sorted(missing)}")
            return cls.model_validate_json(json.dumps(values))
        except (AttributeError, TypeError, ValueError) as error:  # pydantic's among them
            raise CheckpointError(
                f"{REPORT} does not hold the report of a learned index ({error}); save the checkpoint again"
            ) from error


def leaf_terms(texts: Sequence[str], leaf_of: Tensor, router: Paths) -> LeafTerms:
    """Up to 8 terms of every leaf that has any, from an even sample of texts with these leaves [n]."""
    rows = evenly_spaced(len(texts), TEXTS_READ_FOR_TERMS)
    leaves = leaf_of.cpu().numpy()[rows]
    spelled, text, term = count_terms(texts[row] for row in rows.tolist())
    totals, texts_in = np.bincount(term, minlength=len(spelled)), np.bincount(leaves)
    leaf, term, count = add_counts(leaves[text], term, np.ones(len(term), np.int64), len(spelled))
    weight = divergence(count, texts_in[leaf], totals[term], len(rows))
    return {router.indexer.name_of(at): best for at, best in top_terms(leaf, term, weight, spelled, 8)}


def explain_leaf(
    router: Paths,
    keywords: LeafTerms,
    query: Mapping[str, NDArray[Any]],
    arrays: Mapping[str, NDArray[Any]],
    evidence: Mapping[str, Any],
) -> Explanation:
    """Cosine q·d as q·c + q·(d − c), where c is the mean of the leaf's documents: its theme, and the rest."""
    q, d = (np.asarray(a[VECTOR], np.float64).reshape(-1) for a in (query, arrays))  # [m] each
    beam = router.leaves_in_order(torch.from_numpy(q)[None], router.config.leaves)
    leaves, chances = beam.leaves[0].tolist(), beam.logs[0].exp().tolist()
    place = leaves.index(int(np.ravel(arrays[LEAF])[0]))
    visited = int(evidence.get(VISITED, SHOWN_LEAVES))

    def facts(at: int) -> dict[str, Any]:
        leaf, path = router.indexer.name_of(leaves[at]), router.indexer.path_of(leaves[at])
        words = [term for term, _ in keywords.get(leaf, ())]
        return {"leaf": leaf, "path": path, "probability": chances[at], "keywords": words}

    details = {**facts(place), "place": place + 1}
    name, about = details["leaf"], ", ".join(details["keywords"][:TERMS_OF_A_LEAF])
    score, theme = float(np.float32(q @ d)), float(q @ router.centres[leaves[place]].numpy())
    parts = [Part(f"theme of leaf {name}", theme, details), Part("the document's own", score - theme, {})]
    text = (
        f"cosine {score:.3f}: {theme:.3f} by the theme of its leaf {name}{about and f' ({about})'}, "
        f"{score - theme:.3f} by itself; the question goes there with {chances[place]:.0%}, as leaf no. {place + 1}"
    )
    listed = [facts(at) for at in range(min(len(leaves), max(visited, 1)))]
    detail: dict[str, Any] = {"leaf": name, "path": details["path"], "leaves": listed}
    if VISITED in evidence:
        detail[VISITED] = visited or None
        text += f" of {visited:,} visited" if visited else ""
    return Explanation(score, parts, text, detail, brief=about and f"filed under {about}")
