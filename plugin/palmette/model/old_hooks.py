"""Hooks under their former names, until every method has the present ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from palmette.lexical.weight import options_key

_RENAMED = {
    "learned": "after_fit",
    "files": "extras",
    "vectors": "embed",
    "check_options": "check_search",
    "mix": "lexical_weight",
}


@dataclass(frozen=True)
class OldPlan:
    """Query arrays of a method that searches by itself."""

    queries: dict[str, Any]
    fetch: int | None = None
    rescore: Any = None
    only: Any = None

    def one_query(self, row: int) -> OldPlan:
        """Plan of one query."""
        one = {name: array[row : row + 1] for name, array in self.queries.items()}
        return OldPlan(one, self.fetch, self.rescore, self.only)


def adapt(cls: Any) -> None:  # noqa: C901
    """Give a class with former hooks the present ones."""
    own = vars(cls)
    for old, new in _RENAMED.items():
        if old in own and new not in own:
            setattr(cls, new, own[old])
    if "training_class" in own and "training_defaults" not in own:
        names = own["training_class"].choices()
        plain = own["training_class"].__mro__[1]()
        made = own["training_class"]()
        cls.training_defaults = {n: getattr(made, n) for n in names if getattr(made, n) != getattr(plain, n)}
    if "makes_queries" in own:
        cls.needs_queries = not own["makes_queries"]
    if "takes_embeddings" in own and "accepts_embeddings" not in own:
        cls.accepts_embeddings = own["takes_embeddings"]
    elif "accepts_embeddings" in own:
        cls.takes_embeddings = own["accepts_embeddings"]
    if "encode_vectors" in own:
        documents_of, vectors_of = own["encode_documents"], own["encode_vectors"]
        cls.encode_documents = lambda self, documents, vectors=None: (
            documents_of(self, documents) if vectors is None else vectors_of(self, documents, vectors)
        )
    if "encode_embeddings" in own:
        texts_of, embedded = own["encode_queries"], own["encode_embeddings"]
        cls.encode_queries = lambda self, queries, options: (
            embedded(self, queries) if isinstance(queries, np.ndarray) else texts_of(self, queries, options)
        )
    if "restore" in own and "load_extras" not in own:
        restore = own["restore"]
        cls.load_extras = lambda self, files: restore(self, _Files(files))
    if "search" in own and "plan" not in own:
        _search(cls, own["search"])
    if "calibrated" in own and "lexical_variants" not in own:
        cls.lexical_variants = lambda self: {options_key(o): o for o in self.calibrated()}
    if {"additive", "scored_alike"} & set(own) and "lexical_key" not in own:
        _key(cls)
    if "describe" in own and own["describe"].__code__.co_argcount == 1:
        _describe(cls, own["describe"])


class _Files:
    def __init__(self, files: Any) -> None:
        self.files, self.path = files, "checkpoint"

    def file(self, name: str) -> bytes:
        return bytes(self.files[name])


def _search(cls: Any, search: Any) -> None:
    def plan(self: Any, queries: Any, k: int, options: Any, view: Any) -> OldPlan:
        planned = self.planned(view, queries, k, options) if hasattr(self, "planned") else queries
        fetch = self.shortlist(options) if hasattr(self, "shortlist") else None
        return OldPlan(planned, fetch, fetch)

    def execute(self: Any, view: Any, plan: OldPlan, k: int, options: Any) -> Any:
        return search(self, view if plan.only is None else view.within(plan.only), plan.queries, k, options)

    cls.plan, cls.execute = plan, execute


def _key(cls: Any) -> None:
    def key(self: Any, options: Any) -> str | None:
        if hasattr(self, "additive") and not self.additive(options):
            return None
        return options_key(self.scored_alike(options) if hasattr(self, "scored_alike") else options)

    cls.lexical_key = key


def _describe(cls: Any, describe: Any) -> None:
    def described(self: Any, view: Any = None) -> dict[str, Any]:
        if view is None:
            return dict(describe(self))
        warning = self.warning(view) if hasattr(self, "warning") else None
        facts = self.survey(view) if hasattr(self, "survey") else {}
        return {**facts, **({"warning": warning} if warning else {})}

    cls.describe = described


def old_names(model: Any) -> None:
    """Former names of methods that overrides call."""

    def refuse(self: Any, *_: Any) -> None:
        self.require_embeddings()

    model.mix, model.options = model.lexical_weight, model.search_options
    model.encode_vectors = model.encode_embeddings = refuse
