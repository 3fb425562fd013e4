"""Explanation of a score: the chain of ancestors, and what each step adds."""

from __future__ import annotations

import numpy as np

from palmette.arrays import Floats
from palmette.machine.text import shorten
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
    names = [nodes.names[row] if row >= 0 else "this document" for row in chain]
    steps = [
        {"id": nodes.ids[row] if row >= 0 else None, "name": name, "score": score, "probability": chance}
        for row, name, score, chance in zip(chain, names, scores, chances, strict=True)
    ]
    # the most general node counts in full, each step down adds a difference
    added = [score - above for score, above in zip(scores, [*scores[1:], 0.0], strict=True)]
    parts = [Part(*part) for part in zip(names, added, steps, strict=True)][::-1]
    short = [shorten(name, 40) for name in names]
    trail = " ▸ ".join(f"{name} ({chance:.0%})" for name, chance in zip(short, chances, strict=True))
    brief = " ▸ ".join(short) if len(short) > 1 else ""
    return Explanation(scores[0], parts, f"score {scores[0]:.2f}; {trail}", {"chain": steps}, brief=brief)
