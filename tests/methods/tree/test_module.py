"""Split functions, propagation and the tree of both."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch

from palmette.encoder import States
from palmette.methods.tree import TreeConfig, module
from palmette.methods.tree.init import initialise
from palmette.methods.tree.module import Tree
from palmette.training.maths import ntvd, symmetric_info_nce

WIDTH, TOKENS = 6, 5
SPLITS = ("linear", "cross_attention")
PROPAGATIONS = ("product", "learned")
KINDS = [{"split": split, "propagation": way, "start": "random"} for split, way in product(SPLITS, PROPAGATIONS)]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(kind.values()))


@pytest.fixture(scope="module", autouse=True)
def small_attention() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "HEADS", 2)
        patch.setattr(module, "HEAD_WIDTH", 3)
        yield


def random_tree(depth: int, seed: int, **options: Any) -> tuple[Tree, torch.Generator]:
    generator = torch.Generator().manual_seed(seed)
    shape = {"depth": depth, "width": WIDTH, "token_width": TOKENS, "start": "random"}
    config = TreeConfig(**shape | options)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        tree = Tree(config).eval()
    initialise(tree, torch.randn(20, WIDTH, generator=generator), seed)
    return tree, generator


def texts(count: int, seed: int, longest: int = 7) -> States:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (count,), generator=generator)
    lengths[0] = longest
    return States(
        torch.randn(count, WIDTH, generator=generator),
        tokens=torch.randn(count, longest, TOKENS, generator=generator),
        mask=torch.arange(longest) < lengths[:, None],
    )


@every_kind
def test_every_parameter_learns(kind: dict[str, Any]) -> None:
    tree, _ = random_tree(3, 1, **kind)
    # as in the paper
    assert (tree.linear is None) == (kind["split"] != "linear")
    loss = symmetric_info_nce(ntvd(tree(texts(8, 1)), tree(texts(8, 2))) * tree.multiplier(3))
    loss = loss + tree.log_multipliers[:2].sum()  # the levels above have their own
    loss.backward()
    for name, parameter in tree.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_attention_does_not_see_how_it_was_cut_into_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    (tree, _), states = random_tree(4, 0, split="cross_attention"), texts(4, 3)
    found = []
    for size in (module.NUMBERS_OF_A_PASS, 1):  # all nodes, and a node at a time, recomputed in the backward pass
        monkeypatch.setattr(module, "NUMBERS_OF_A_PASS", size)
        leaves = tree(states)
        found.append((leaves, *torch.autograd.grad(leaves.square().sum(), list(tree.parameters())[1:])))
    for whole, parts in zip(*found, strict=True):
        torch.testing.assert_close(parts, whole)
