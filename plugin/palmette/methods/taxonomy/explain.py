"""Explanation of a score: the chain of ancestors, and what each step adds."""

from __future__ import annotations

from typing import Any

import numpy as np

from palmette.arrays import Floats
from palmette.methods.taxonomy.hierarchy import Nodes
from palmette.methods.taxonomy.search import RelevanceCutoff
from palmette.types import Explanation, Part


def explain(nodes: Nodes, cutoff: RelevanceCutoff, query: Floats, vector: Floats, node: int) -> Explanation:
    """Explain the score of a document [d], the node of a row or none (−1), for a query times T [d]."""
    chain, scores = [node], [float(query @ vector)]
    if nodes.hierarchy is not None and node >= 0:
        while len(parents := nodes.hierarchy.parents[chain[-1]]):
            near = cutoff.nodes[parents].cpu().numpy() @ query  # [parents]
            chain.append(int(parents[near.argmax()]))  # of several, the best-scoring way up
            scores.append(float(near.max()))
    raw = np.array([scores], np.float32)
    chances = cutoff.probability(query[None], raw)[0].tolist()
    if nodes.hierarchy is not None:
        scores = cutoff.scaled(query[None], raw)[0].tolist()
    steps: list[dict[str, Any]] = [
        {
            "id": nodes.ids[row] if row >= 0 else None,
            "name": nodes.names[row] if row >= 0 else "this document",
            "score": score,
            "probability": chance,
        }
        for row, score, chance in zip(chain, scores, chances, strict=True)
    ]
    general = [*scores[1:], 0.0]  # the most general node counts in full, each step down adds a difference
    triples = zip(steps, scores, general, strict=True)
    parts = [Part(step["name"], score - above, step) for step, score, above in triples][::-1]
    short = [name if len(name) <= 40 else f"{name[:39]}…" for name in (step["name"] for step in steps)]
    trail = " ▸ ".join(f"{name} ({chance:.0%})" for name, chance in zip(short, chances, strict=True))
    brief = " ▸ ".join(short) if len(short) > 1 else ""
    return Explanation(scores[0], parts, f"score {scores[0]:.2f}; {trail}", {"chain": steps}, brief=brief)
