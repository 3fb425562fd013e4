"""Executes a SearchPlan over views that answer probes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from palmette.search.plan import Candidates, SearchPlan, rescore_rows
from palmette.search.probe import Parts, Probe


def execute(view: Any, plan: SearchPlan, k: int) -> Candidates:
    """The ``k`` best documents of every row of a plan."""
    if plan.only is not None:
        view = view.within(plan.only)
        plan = replace(plan, only=None)
    first = plan.first
    depth = k if plan.rescore is None else max(k, plan.fetch or k)
    depth = max(1, min(depth, max(1, len(view))))
    if first.part_weights is not None:
        found = view.nearest_part(Parts(first.array, first.queries, first.part_weights, first.scales), depth)
    else:
        found = view.nearest(Probe(first.array, first.queries, first.metric, first.fold, plan.lists), depth)
    second = plan.rescore
    if second is None:
        return found
    if second.part_weights is None:
        return rescore_rows(view, plan, found, k)
    parts = Parts(second.array, second.queries, second.part_weights, second.scales, found.scores, plan.share)
    ranked = view.rescored(found.keys, parts, k)
    return replace(found, keys=ranked.keys, scores=ranked.scores, evidence=ranked.evidence)
