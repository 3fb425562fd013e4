"""Where tokens stand, and what may look at what."""

import pytest
import torch

from palmette.errors import ConfigError
from palmette.methods.fields.layout import Layout, ancestors_of

NAMES = ["brand", "title", "text"]
CLS, SEP, PAD, NEW = 2, 3, 0, 100


def test_which_field_sees_which() -> None:
    one, none = True, False
    assert ancestors_of(NAMES, "triangular", None).tolist() == [
        [one, none, none],
        [one, one, none],
        [one, one, one],
    ]
    assert ancestors_of(NAMES, "diagonal", None).equal(torch.eye(3).bool())
    assert ancestors_of(NAMES, "full", None).all()


def test_any_graph_without_cycles_will_do() -> None:
    chain = ancestors_of(NAMES, "triangular", {"text": ["title"], "title": ["brand"]})
    assert chain.equal(ancestors_of(NAMES, "triangular", None)), "what a seen field sees comes with it"
    forked = ancestors_of(NAMES, "triangular", {"brand": ["text"], "title": ["text"]})
    assert forked.int().tolist() == [[1, 0, 1], [0, 1, 1], [0, 0, 1]]
    with pytest.raises(ConfigError, match="goes round in a circle: 'brand' and 'title'"):
        ancestors_of(NAMES, "triangular", {"text": ["title"], "title": ["brand"], "brand": ["text"]})
    with pytest.raises(ConfigError, match="'colour', which is not there; fields: brand, title, text"):
        ancestors_of(NAMES, "triangular", {"text": ["colour"]})


def test_a_document_is_laid_out_field_by_field() -> None:
    layout = Layout.of(ancestors_of(NAMES, "triangular", None))
    batch = layout.documents([[[11], [12, 13], []], [[], [], [14]]], (CLS, SEP, PAD), NEW)
    assert batch.ids.tolist() == [
        [CLS, 100, 101, 102, 11, SEP, 12, 13, SEP],
        [CLS, 100, 101, 102, 14, SEP, PAD, PAD, PAD],
    ]
    assert batch.codes.tolist() == [[9, 3, 4, 5, 0, 6, 1, 1, 7], [9, 3, 4, 5, 2, 8, 11, 11, 11]]
    assert batch.positions.tolist()[0] == [0, 0, 0, 0, 1, 2, 2, 3, 4], (
        "words stand where the encoder expects them"
    )


def test_the_mask_is_a_table_over_what_tokens_are() -> None:
    layout = Layout.of(ancestors_of(NAMES, "triangular", None))
    batch = layout.documents([[[11], [12], [13]]], (CLS, SEP, PAD), NEW)
    looks = {
        (i, j): bool(layout.mask(batch.codes)[0, 0, i, j]) for i in range(10) for j in range(10)
    }  # CLS f0 f1 f2 a SEP b SEP c SEP
    assert [looks[0, j] for j in range(10)] == [1, 0, 0, 0, 1, 0, 1, 0, 1, 0], "CLS sees all words"
    assert not any(looks[i, 0] for i in range(1, 10)), "no other token looks at CLS"
    assert [looks[2, j] for j in range(10)] == [0, 0, 1, 0, 1, 0, 1, 1, 0, 0], "the token of the second field"
    assert [looks[6, j] for j in range(10)] == [0, 0, 1, 0, 1, 0, 1, 1, 0, 0], "a word of it"
    assert [looks[4, j] for j in range(10)] == [0, 1, 0, 0, 1, 1, 0, 0, 0, 0], "a word of the first"


def test_a_field_stands_after_what_it_sees() -> None:
    for attention, expected in (
        ("triangular", [1, 2, 2, 3, 4, 4, 5]),
        ("full", [1, 2, 2, 3, 4, 4, 5]),
        ("diagonal", [1, 2, 1, 2, 3, 1, 2]),
    ):
        layout = Layout.of(ancestors_of(NAMES, attention, None))
        batch = layout.documents([[[11], [12, 12], [13]]], (CLS, SEP, PAD), NEW)
        assert batch.positions[0, 4:].tolist() == expected


def test_what_a_field_averages() -> None:
    for attention, expected in (
        ("triangular", [[0, 1, 0, 0, 1, 1, 0, 0, 0, 0], [0, 0, 1, 0, 1, 0, 1, 1, 0, 0]]),
        ("diagonal", [[0, 1, 0, 0, 1, 1, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0, 1, 1, 0, 0]]),
        ("full", [[0, 1, 0, 0, 1, 1, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0, 1, 1, 0, 0]]),
    ):
        layout = Layout.of(ancestors_of(NAMES, attention, None))
        batch = layout.documents([[[11], [12], [13]]], (CLS, SEP, PAD), NEW)
        assert layout.members(batch.codes)[0, :2].int().tolist() == expected


def test_a_query_has_the_same_tokens_and_hides_nothing() -> None:
    layout = Layout.of(ancestors_of(NAMES, "triangular", None))
    batch = layout.queries([[11, 12], [13]], (CLS, SEP, PAD), NEW)
    assert batch.ids.tolist() == [[CLS, 100, 101, 102, 11, 12, SEP], [CLS, 100, 101, 102, 13, SEP, PAD]]
    mask = layout.mask(batch.codes)[:, 0]
    assert mask[0, 1:4, 4:].all()
    assert mask[0, 4:, 4:].all()
    assert not mask[1, :6, 6].any(), "nothing looks at what is not there"
    assert mask.any(-1).all(), "and everything looks at something"
