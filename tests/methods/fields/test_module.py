"""Later fields do not leak into earlier ones; the encoder it begins as; empty fields and batches."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from palmette import load_encoder
from palmette.encoder import Backbone
from palmette.encoder.local.backbone import FAMILIES
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
        made.field_weights.weight.normal_()
    return made.eval().requires_grad_(False)


DOCUMENT = [[6, 7], [8, 9, 10], [11, 12, 13, 14]]


@pytest.mark.parametrize("family", FAMILIES)
def test_no_family_lets_a_field_be_known_that_is_not_seen(tmp_path, family: str) -> None:
    made = module(save_tiny_encoder(tmp_path / "m", family=family))
    longer = [[6, 7], [8, 9, 10], [20, 21, 22, 23, 24, 25]]
    before, after = made("document", [DOCUMENT]), made("document", [longer])
    torch.testing.assert_close(before.fields[:, :2], after.fields[:, :2], atol=1e-5, rtol=0)
    assert (before.fields[:, 2] - after.fields[:, 2]).abs().max() > 1e-3
    wide = [[6, 7, 8, 9, 15, 16], *DOCUMENT[1:]]
    moved = (made("document", [wide]).fields - before.fields).abs().amax(-1)[0]
    assert moved[0] > 1e-3
    assert not (moved[1:] < 1e-5).all()


def test_a_batch_is_its_documents_one_by_one(folder: Path) -> None:
    made = module(folder)
    documents = [DOCUMENT, [[6], [], []], [[], [], [11]], [[], [8] * 40, []], [[], [], []]]
    together, many = made("document", documents), made.encode("document", documents * 15)
    for row, document in enumerate(documents):
        for one, few, all_of_them in zip(made("document", [document]), together, many, strict=True):
            torch.testing.assert_close(one[0], few[row], atol=1e-5, rtol=0)
            for at in (row, row + 10):
                np.testing.assert_allclose(all_of_them[at], one[0].numpy(), atol=1e-5)
    assert [len(part) for part in made.encode("query", [])] == [0, 0, 0]


@pytest.mark.parametrize("attention", ["triangular", "full"])
def test_untrained_weights_go_to_fields_that_have_words(folder: Path, attention: Any) -> None:
    made = module(folder, attention=attention, labelled=False)
    made.field_weights.weight.zero_()
    found = made("document", [[[6, 7], [], [11, 12]], DOCUMENT, [[], [8], []]])
    expected = torch.tensor([[1 / 2, 0, 1 / 2], [1 / 3] * 3, [0, 1, 0]])
    torch.testing.assert_close(found.weights, expected)
    assert (made("query", [[6, 7]]).weights == 1 / 3).all()


@pytest.mark.parametrize("family", ["bert", "mpnet"])
def test_the_whole_document_is_what_the_encoder_makes_of_it(tmp_path: Path, family: str) -> None:
    prompts = {"document": "cat dog: ", "query": "owl: "}
    encoder = load_encoder(save_tiny_encoder(tmp_path / "m", family=family, prompts=prompts), device="cpu")
    made = module(tmp_path / "m", (*FIELDS, "all"))
    made.field_weights.weight.zero_()
    text = made.backbone.tokenise(["cat dog: the cat sat"])[0]
    found = made("document", [[*DOCUMENT, text]])
    np.testing.assert_allclose(found.fields[0, -1], encoder.encode(["the cat sat"])[0], atol=1e-5)
    assert found.weights[0, -1] > 0.8, "it counts most before anything is learned"
    for asking in (made, module(tmp_path / "m", FIELDS[:1])):
        query = asking("query", made.backbone.tokenise(["owl: a dog"])).aggregate
        np.testing.assert_allclose(query.numpy(), encoder.encode_queries(["a dog"]), atol=1e-5)
