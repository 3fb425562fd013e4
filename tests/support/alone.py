"""An index whose searches show the method alone: its scores and its explanations, without words and sentences."""

from dataclasses import replace
from typing import Any

from palmette import Explanation, Hit
from palmette import Index as WholeIndex

ALONE = {"lexical": 0, "sentences": False}


class Index(WholeIndex):
    def search(self, query: Any, k: int = 10, **how: Any) -> Any:
        found = super().search(query, k, **ALONE | how)
        return [alone(hit) for hit in found] if isinstance(query, str) else [[*map(alone, f)] for f in found]

    def rank(self, queries: Any, k: int = 10, **how: Any) -> Any:
        found = super().rank(queries, k, **ALONE | how)
        scores = [[hit.score for hit in hits] for hits in self.search(queries, k, **how)]
        return replace(found, scores=scores)

    def explain(self, query: Any, id: str, **how: Any) -> Explanation:
        return super().explain(query, id, **ALONE | how).method


def alone(hit: Hit) -> Hit:
    def explain() -> Explanation:
        return hit.explain().method

    return replace(hit, score=hit.evidence["method_score"], explainer=explain)
