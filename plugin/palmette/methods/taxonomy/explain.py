"""Explanation of a score: the chain of ancestors, and what each step adds."""

from __future__ import annotations

import numpy as np

from palmette.arrays import Floats
from palmette.methods.taxonomy.hierarchy import Nodes
from palmette.methods.taxonomy.search import RelevanceCutoff
from palmette.types import Explanation, Part


def explain(nodes: Nodes, cutoff: RelevanceCutoff, query: Floats, vector: Floats, node: int) -> Explanation:
    """Explain the score of a document [d] for a query [d].

    Args:
        nodes: Known nodes.
        cutoff: Their embeddings, and the probability of a score.
        query: [d], T included.
        vector: [d] of the document.
        node: Row of the document, or −1.
    """
    chain, scores = [node], [float(query @ vector)]
    if nodes.hierarchy is not None and node >= 0:
        while len(parents := nodes.hierarchy.parents[chain[-1]]):
            above = (
                cutoff.nodes[parents].cpu().numpy() @ query
            )  # [parents]: of several, the best-scoring way up
            chain.append(int(parents[above.argmax()]))
            scores.append(float(above.max()))
    steps = [
        {
            "id": nodes.ids[row] if row >= 0 else None,
            "name": nodes.names[row] if row >= 0 else "this document",
            "score": score,
            "probability": probability,
        }
        for row, score, probability in zip(
            chain,
            scores,
            cutoff.probability(query[None], np.array([scores], np.float32))[0].tolist(),
            strict=True,
        )
    ]
    below = np.append(
        scores[1:], 0.0
    )  # the most general node counts in full, each step down adds a difference
    parts = [
        Part(str(step["name"]), score - float(general), step)
        for step, score, general in reversed(list(zip(steps, scores, below, strict=True)))
    ]
    short = [name if len(name) <= 40 else f"{name[:39]}…" for name in (str(step["name"]) for step in steps)]
    trail = " ▸ ".join(f"{name} ({step['probability']:.0%})" for name, step in zip(short, steps, strict=True))
    return Explanation(scores[0], parts, f"score {scores[0]:.2f}; {trail}", {"chain": steps})
