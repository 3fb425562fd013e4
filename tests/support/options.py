"""Random search options of every method, as hypothesis draws them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from palmette import Model

if TYPE_CHECKING:  # methods need torch
    from palmette import FieldsModel, LayersModel, TaxonomyModel, TreeModel

Options = st.SearchStrategy[dict[str, Any]]
COUNT = st.integers(1, 60)
SHARE = st.floats(0, 1).map(lambda share: round(share, 2))


def of_tree(model: TreeModel) -> Options:
    return drawn(level=st.one_of(st.none(), st.integers(1, model.config.depth)))


def of_fields(model: FieldsModel) -> Options:
    names = st.lists(st.sampled_from(model.config.order), min_size=1, unique=True)
    weights = st.dictionaries(st.sampled_from(model.config.order), st.floats(0.1, 4), min_size=1)
    by_field = drawn(
        by=st.sampled_from(["two_stage", "best"]), shortlist=COUNT, blend=SHARE, fields=names, weights=weights
    )
    return st.one_of(by_field, drawn(by=st.just("aggregate"), shortlist=COUNT, blend=SHARE))


def of_layers(model: LayersModel) -> Options:
    layers = st.lists(st.sampled_from(model.config.query_layers), min_size=1, unique=True).map(sorted)
    return drawn(order=st.sampled_from(["fused", "layer"]), layers=layers)


def of_paths(model: Model) -> Options:
    visit = st.one_of(st.just("auto"), COUNT, st.floats(0.01, 1))
    return drawn(visit=visit, beam=st.integers(1, 8))


def of_taxonomy(model: TaxonomyModel) -> Options:
    order = st.sampled_from(["score", "specific"])
    if model.nodes.hierarchy is None:
        return drawn(cut=SHARE, order=order)
    return drawn(cut=SHARE, order=order, within=st.sampled_from(model.nodes.ids))


def drawn(**options: st.SearchStrategy[Any]) -> Options:
    """Any of these options, each with or without."""
    return st.fixed_dictionaries({}, optional=options)


STRATEGIES = {
    "fields": of_fields,
    "layers": of_layers,
    "paths": of_paths,
    "space": lambda model: st.just({}),
    "taxonomy": of_taxonomy,
    "tree": of_tree,
}


def search_options(model: Model) -> Options:
    """Valid options of a model's search."""
    return STRATEGIES[model.method](model)
