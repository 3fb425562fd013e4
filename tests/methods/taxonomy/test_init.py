import pytest

from palmette import TaxonomyModel
from palmette.errors import InputError
from palmette.methods.taxonomy import Hierarchy
from palmette.methods.taxonomy.init import dimension_needed
from support.alone import Index


def tree(height: int, width: int) -> Hierarchy:
    level, edges = [""], []
    for _ in range(height):
        edges += [(f"{parent}{child}", parent or "top") for parent in level for child in range(width)]
        level = [f"{parent}{child}" for parent in level for child in range(width)]
    return Hierarchy.from_edges(edges)


def test_deeper_trees_need_more_dimensions() -> None:
    needed = [dimension_needed(tree(height, 2)) for height in (2, 4, 6)]
    assert needed == sorted(needed)
    assert needed[0] < needed[-1] < 200
    assert dimension_needed(tree(6, 2), recall=0.5) < needed[-1]
    assert dimension_needed(tree(6, 2), max_distance=0) < needed[-1]


def test_a_model_without_training_is_searched_as_any_other() -> None:
    hierarchy = tree(3, 3)
    model = TaxonomyModel.construct(hierarchy, dimension=256)
    assert model.record.steps == 0
    assert model.record.metrics["cut precision"] > 0.9
    hits = Index.build(hierarchy.documents(), model).search("012", k=4)
    assert {hit.id for hit in hits} == {"012", "01", "0", "top"}
    assert TaxonomyModel.construct(hierarchy).config.dimension == dimension_needed(hierarchy)
    with pytest.raises(InputError, match="needs a hierarchy"):
        TaxonomyModel.construct([("a query", "a document")])
