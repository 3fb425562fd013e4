"""The forward pass against the paper's equations in NumPy; every size and every weight differs from the others."""

import math
from collections.abc import Iterator
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import torch

from palmette.encoder import States
from palmette.methods.tree import TreeConfig, module
from palmette.methods.tree.module import Tree
from support.reference import Doubles, randomise, relu, sigmoid, softmax, weights_of

DEPTH, WIDTH, TOKENS, TEXTS = 3, 7, 5, 4
SIZES = {"HEADS": 2, "HEAD_WIDTH": 3, "NODE_HIDDEN": 4}
CASES = [
    {"split": split, "propagation": propagation, "start": "random"}
    for split, propagation in product(("linear", "cross_attention"), ("product", "learned"))
]


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SIZES.items():
            patch.setattr(module, name, value)
        yield


def random_tree(**options: Any) -> Tree:
    """A tree whose every weight is random: nothing is 0, 1 or equal to another."""
    tree = Tree(TreeConfig(depth=DEPTH, width=WIDTH, token_width=TOKENS, **options)).double().eval()
    draw = randomise(tree, 8)
    for buffer in [buffer for name, buffer in tree.named_buffers() if name.endswith("slopes")]:
        buffer.copy_(torch.randn(buffer.shape, generator=draw, dtype=torch.float64))
    return tree


def texts() -> States:
    draw = torch.Generator().manual_seed(6)
    x = torch.randn(TEXTS, WIDTH, generator=draw, dtype=torch.float64)
    tokens = torch.randn(TEXTS, 6, TOKENS, generator=draw, dtype=torch.float64)
    return States(x, tokens=tokens, mask=torch.arange(6) < torch.tensor([6, 4, 1, 3])[:, None])


def parents(node: int) -> list[int]:
    """The node itself, its parent and so on up to the root."""
    return [node, *parents((node - 1) // 2)] if node else [0]


def attention(w: dict[str, Doubles], node: int, tokens: Doubles) -> Doubles:
    """Equations 3 – 6 for one node and one text's tokens [n, d]: the heads' outputs, concatenated."""
    q = w["beyond.embeddings"][node, 0] @ w["beyond.query.weight"].T
    k, v = tokens @ w["beyond.key.weight"].T, tokens @ w["beyond.value.weight"].T
    heads, width = SIZES["HEADS"], SIZES["HEAD_WIDTH"]
    outputs = []
    for head in range(heads):
        own = slice(head * width, (head + 1) * width)
        outputs.append(softmax(k[:, own] @ q[own] / math.sqrt(width)) @ v[:, own])
    return np.concatenate(outputs)


def score(tree: Tree, w: dict[str, Doubles], node: int, x: Doubles, tokens: Doubles) -> float:
    """s_t(x) before the ancestors' correction: equation 2, or A.1.3 with A.2."""
    if tree.linear is not None:
        slope = w["linear.slopes"][node]
        return float(slope * (w["linear.directions"][node] @ x + w["linear.offsets"][node]))
    return float(w["beyond.out"][node] @ attention(w, node, tokens))


def leaves_by_hand(tree: Tree, states: States) -> Doubles:
    """Probabilities of the leaves, node by node."""
    config, w, out = tree.config, weights_of(tree), []
    assert states.tokens is not None
    assert states.mask is not None
    for x, every, mask in zip(states.pooled.numpy(), states.tokens.numpy(), states.mask.numpy(), strict=True):
        s = np.array([score(tree, w, node, x, every[mask]) for node in range(config.splits)])
        if config.split == "cross_attention":
            s = refined(w, s)
        probability, learned = [], []
        for leaf in range(config.leaves):
            way = parents(config.leaves - 1 + leaf)[::-1]  # root … leaf
            z = sigmoid(s)
            turns = np.array([z[a] if b == 2 * a + 1 else 1 - z[a] for a, b in pairwise(way)])
            probability.append(turns.prod())  # equation 7; z is the turn to the left
            if config.propagation == "learned":  # a function of the routing probabilities, one per leaf
                hidden = relu(turns @ w["learned.inner"][leaf] + w["learned.bias"][leaf])
                learned.append(np.log(turns).sum() + w["learned.out"][leaf] @ hidden)
        out.append(softmax(np.array(learned)) if learned else np.array(probability))
    return np.array(out)


def refined(w: dict[str, Doubles], s: Doubles) -> Doubles:
    """A.2, third kind: every score corrected by a network over the scores of the node and its ancestors."""
    out = s.copy()
    for node in range(len(s)):
        hidden = w["refine.bias"][node].copy()
        for up, above in enumerate(parents(node)):
            hidden += s[above] * w["refine.inner"][node, up]
        out[node] += w["refine.out"][node] @ relu(hidden)
    return out


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_every_level_is_what_the_equations_say(case: dict[str, Any]) -> None:
    tree, states = random_tree(**case), texts()
    leaves = leaves_by_hand(tree, states)
    assert np.ptp(leaves) > 0.05, "a reference that tells texts and leaves apart"
    with torch.no_grad():
        for level in range(1, DEPTH + 1):
            by_hand = leaves.reshape(TEXTS, 2**level, -1).sum(2)
            np.testing.assert_allclose(tree(states, level).numpy(), by_hand, atol=1e-9)
