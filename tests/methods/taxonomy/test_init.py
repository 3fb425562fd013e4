import pytest
import torch

from palmette import TaxonomyModel
from palmette.errors import InputError
from palmette.methods.taxonomy import Hierarchy
from palmette.methods.taxonomy.init import construct, dimension_needed
from palmette.methods.taxonomy.training import found_matches
from support.alone import Index


def tree(height: int, width: int) -> Hierarchy:
    level, edges = [""], []
    for _ in range(height):
        edges += [(f"{parent}{child}", parent or "top") for parent in level for child in range(width)]
        level = [f"{parent}{child}" for parent in level for child in range(width)]
    return Hierarchy.from_edges(edges)


def test_random_directions_solve_a_hierarchy_when_there_are_enough() -> None:
    matches = tree(4, 3).matches()
    recalls = []
    for dimension in (4, 32, 512):
        queries, documents = construct(matches, dimension, torch.Generator().manual_seed(0))
        torch.testing.assert_close(queries.norm(dim=1), torch.ones(len(matches)))
        torch.testing.assert_close(documents.norm(dim=1), torch.ones(matches.size))
        recalls.append(found_matches(queries, documents, matches).mean())
    assert recalls == sorted(recalls)
    assert recalls[-1] == 1.0
    sums = documents[matches.documents[matches.starts[5] : matches.starts[6]].astype(int)].sum(0)
    torch.testing.assert_close(queries[5], sums / sums.norm())


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
