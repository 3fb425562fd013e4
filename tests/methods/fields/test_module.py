"""The encoder of fields: it begins as the encoder, and later fields do not leak into earlier ones."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from palmette import load_encoder
from palmette.encoder import Backbone
from palmette.encoder.backbone import FAMILIES
from palmette.methods.fields.config import FieldsConfig
from palmette.methods.fields.module import FieldEncoder
from support.tiny_encoder import save_tiny_encoder

FIELDS = ("brand", "title", "text")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return save_tiny_encoder(tmp_path_factory.mktemp("encoder") / "m")


def module(folder: Path, fields: tuple[str, ...] = FIELDS, **options) -> FieldEncoder:
    encoder = load_encoder(folder, device="cpu", dtype="float32")
    made = FieldEncoder(FieldsConfig(fields=fields, **options), Backbone.of(encoder, new_tokens=len(fields)))
    with torch.no_grad():  # as after some training: nothing is zero or alike
        torch.manual_seed(1)
        made.weigh.weight.normal_()
    return made.eval().requires_grad_(False)


DOCUMENT = [[6, 7], [8, 9, 10], [11, 12, 13, 14]]


@pytest.mark.parametrize("pooling", ["mean", "token"])
@pytest.mark.parametrize("similarity", ["cosine", "inner_product"])
def test_later_fields_do_not_leak_into_earlier_vectors(folder: Path, pooling: str, similarity: str) -> None:
    made = module(folder, pooling=pooling, similarity=similarity)
    changed = [[6, 7], [8, 9, 10], [20, 21, 22]]
    before, after = made.documents([DOCUMENT]), made.documents([changed])
    torch.testing.assert_close(before.fields[:, :2], after.fields[:, :2], atol=1e-6, rtol=0)
    assert (before.fields[:, 2] - after.fields[:, 2]).abs().max() > 1e-3
    assert (before.weights - after.weights).abs().max() > 1e-4, "CLS sees everything"
    assert (before.aggregate - after.aggregate).abs().max() > 1e-4


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("attention", ["triangular", "diagonal"])
def test_no_family_lets_a_field_be_known_that_is_not_seen(tmp_path, family: str, attention: str) -> None:
    made = module(save_tiny_encoder(tmp_path / "m", family=family), attention=attention)
    longer = [[6, 7], [8, 9, 10], [20, 21, 22, 23, 24, 25]]
    before, after = made.documents([DOCUMENT]), made.documents([longer])
    torch.testing.assert_close(before.fields[:, :2], after.fields[:, :2], atol=1e-5, rtol=0)
    assert (before.fields[:, 2] - after.fields[:, 2]).abs().max() > 1e-3
    wide = [[6, 7, 8, 9, 15, 16], *DOCUMENT[1:]]
    moved = (made.documents([wide]).fields - before.fields).abs().amax(-1)[0]
    assert moved[0] > 1e-3
    assert (moved[1:] < 1e-5).all() == (attention == "diagonal")


@pytest.mark.parametrize("way", ["eager", "sdpa"])
def test_both_ways_of_attention_hide_the_same(folder: Path, way: str) -> None:
    made = module(folder)
    expected = made.documents([DOCUMENT])
    made.backbone.network.set_attn_implementation(way)
    assert made.backbone.network.config._attn_implementation == way
    found = made.documents([DOCUMENT])
    torch.testing.assert_close(found.fields, expected.fields, atol=1e-5, rtol=0)
    changed = made.documents([[[6, 7], [8, 9, 10], [20, 21, 22]]])
    torch.testing.assert_close(found.fields[:, :2], changed.fields[:, :2], atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("options", "moved"),
    [
        ({}, [False, True, True]),
        ({"attention": "diagonal"}, [False, True, False]),
        ({"attention": "full"}, [True, True, True]),
        ({"sees": ("brand=title", "text=brand")}, [True, True, True]),
        ({"sees": ("text=brand",)}, [False, True, False]),
    ],
    ids=str,
)
def test_a_changed_title_moves_what_sees_it(folder: Path, options: dict, moved: list[bool]) -> None:
    made = module(folder, **options)
    before, after = made.documents([DOCUMENT]), made.documents([[DOCUMENT[0], [25, 26], DOCUMENT[2]]])
    distance = (before.fields - after.fields).abs().amax(-1)[0]
    assert (distance > 1e-4).tolist() == moved
    assert (distance[[not m for m in moved]] < 1e-6).all()


def test_with_one_field_it_is_the_encoder(folder: Path) -> None:
    made, encoder = module(folder, ("text",)), load_encoder(folder, device="cpu", dtype="float32")
    texts = ["the cat sat on the mat", "a dog"]
    vectors = encoder.encode(texts)
    ids = made.backbone.tokenise(texts)
    for found in (made.documents([[row] for row in ids]), made.queries(ids)):
        np.testing.assert_allclose(found.aggregate.numpy(), vectors, atol=1e-6)
        np.testing.assert_allclose(found.fields[:, 0].numpy(), vectors, atol=1e-6)


def test_a_query_begins_as_the_encoders_own_whatever_the_fields(folder: Path) -> None:
    encoder = load_encoder(folder, device="cpu", dtype="float32")
    for queries in ("fields", "plain"):
        made = module(folder, queries=queries)
        found = made.queries(made.backbone.tokenise(["the cat sat"])).aggregate
        np.testing.assert_allclose(found.numpy(), encoder.encode_queries(["the cat sat"]), atol=1e-6)


def test_a_batch_is_its_documents_one_by_one(folder: Path) -> None:
    made = module(folder)
    documents = [DOCUMENT, [[6], [], []], [[], [], [11]], [[], [8] * 30, []]]
    together = made.documents(documents)
    for row, document in enumerate(documents):
        alone = made.documents([document])
        for one, all_of_them in zip(alone, together, strict=True):
            torch.testing.assert_close(one[0], all_of_them[row], atol=1e-5, rtol=0)


def test_empty_fields(folder: Path) -> None:
    made = module(folder)
    found = made.documents([[[], [8, 9], []]])
    assert found.fields[0, 0].abs().sum() == 0, "nothing to see yet: no vector"
    assert found.weights[0, 0] == 0
    torch.testing.assert_close(found.weights.sum(), torch.tensor(1.0))
    assert found.fields[0, 2].norm() == pytest.approx(1, abs=1e-5), (
        "made of the field before and its own token"
    )
    nothing = made.documents([[[], [], []]])
    assert torch.isfinite(nothing.aggregate).all()


def test_the_aggregate_is_the_weighted_sum(folder: Path) -> None:
    made = module(folder, similarity="inner_product")
    found = made.documents([DOCUMENT])
    expected = sum(w * h for w, h in zip(found.weights[0], found.fields[0], strict=True))
    torch.testing.assert_close(found.aggregate[0], expected)
    assert found.weights[0].std() > 0.01
    unit = module(folder).documents([DOCUMENT]).aggregate
    assert unit.norm() == pytest.approx(1, abs=1e-6)


def test_a_token_can_be_a_fields_vector(folder: Path) -> None:
    mean, token = module(folder, pooling="mean"), module(folder, pooling="token")
    assert (mean.documents([DOCUMENT]).fields - token.documents([DOCUMENT]).fields).abs().max() > 1e-2
    assert FieldsConfig().token_pooling("cls")
    assert not FieldsConfig().token_pooling("mean")
    assert replace(FieldsConfig(), pooling="mean").token_pooling("cls") is False
