"""Why a document answers: its chain of ancestors, and what each step adds to the score."""

from __future__ import annotations

import numpy as np

from palmette.methods.taxonomy.calibration import CutOff
from palmette.methods.taxonomy.nodes import Nodes
from palmette.search.probe import Floats
from palmette.types import Explanation, Part

__all__ = ["explanation"]


def explanation(nodes: Nodes, cutoff: CutOff, query: Floats, vector: Floats, node: int) -> Explanation:
    """Of one document [d] for one query [d].

    Args:
        nodes: What is known.
        cutoff: The nodes' embeddings, and how probable a score is.
        query: [d], T included.
        vector: [d] of the document.
        node: Its row, or −1.
    """
    score = float(query @ vector)
    chain, scores = [node], [score]
    if nodes.hierarchy is not None and node >= 0:
        while len(parents := nodes.hierarchy.parents[chain[-1]]):
            above = cutoff.nodes[parents].cpu().numpy() @ query  # [parents]: of several, the likeliest way up
            chain.append(int(parents[above.argmax()]))
            scores.append(float(above.max()))
    chances = cutoff.chances(query[None], np.array([scores], np.float32))[0].tolist()
    names = [nodes.names[row] if row >= 0 else "this document" for row in chain]
    ids = [nodes.ids[row] if row >= 0 else None for row in chain]
    steps = [
        {"id": id, "name": name, "score": value, "probability": chance}
        for id, name, value, chance in zip(ids, names, scores, chances, strict=True)
    ]
    parts = [Part(names[-1], scores[-1], steps[-1])]
    parts += [
        Part(names[step], scores[step] - scores[step + 1], steps[step])
        for step in reversed(range(len(chain) - 1))
    ]
    trail = " ▸ ".join(f"{_short(s['name'])} ({s['probability']:.0%})" for s in steps)
    return Explanation(score, parts, f"score {score:.2f}; {trail}", {"chain": steps})


def _short(name: object) -> str:
    text = str(name)
    return text if len(text) <= 40 else f"{text[:39]}…"
