"""Mappings of fields, and documents of all kinds as texts and tokens by field."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from palmette import Document, load_encoder
from palmette.encoder import Backbone
from palmette.errors import ConfigError, InputError
from palmette.methods.fields import FieldsSearch, FieldsWarning
from palmette.methods.fields.config import FieldsConfig, parse_mapping
from palmette.methods.fields.documents import FieldExtractor, field_tokens, token_budgets
from support.shop import FIELDS, shop
from support.tiny import learner
from support.tiny_encoder import save_tiny_encoder

PHONE = Document(
    id="phone",
    text="Fruit Phone 4 A phone that rings.",
    metadata={"brand": "Fruit", "specs": {"size": {"inches": 6.10}}, "a.b": "dotted", "tags": ["new", "red"]},
    fields={"title": "Fruit Phone 4", "attributes": {"colour": "red", "ports": ["usb", "audio"], "5g": True}},
)


def test_mappings_lists_and_text_say_the_same() -> None:
    mapping = {"title": "title", "brand": "metadata.brand"}
    for given in (mapping, "title, brand=metadata.brand", ["title", "brand=metadata.brand"]):
        assert FieldsConfig(fields=given).fields == ("title", "brand=metadata.brand")
    assert parse_mapping({"text": ["title", "brand"]}) == ("text=title+brand",)
    assert parse_mapping(None) == ()
    assert FieldsSearch(weights={"title": 2}, fields="title,text").factors == {"title": 2.0}


@pytest.mark.parametrize(
    ("attention", "fields", "expected"),
    [
        ("triangular", "abc", [[1, 0, 0], [1, 1, 0], [1, 1, 1]]),
        ("full", "abc", [[1, 1, 1]] * 3),
        ("triangular", ["a", "b", "all"], [[1, 0, 0], [1, 1, 0], [0, 0, 1]]),
    ],
)
def test_which_field_attends_to_which(attention: Any, fields: Any, expected: list[list[int]]) -> None:
    config = FieldsConfig(fields=tuple(fields), attention=attention)
    assert config.attended.astype(int).tolist() == expected


def test_fields_lie_in_many_places() -> None:
    expected = {
        "metadata.brand": "Fruit",
        "brand": "Fruit",
        "specs.size.inches": "6.1",
        "metadata.a.b": "dotted",
        "tags": "new, red",
        "fields.attributes.colour": "red",
        "title": "Fruit Phone 4",
        "attributes": "colour: red, ports: usb, audio, 5g: yes",
        "metadata.nothing.at.all": "",
        "metadata.brand+nothing+tags": "Fruit new, red",
        "text": "A phone that rings.",
    }
    extractor = FieldExtractor({source: source for source in expected})
    assert dict(zip(expected, extractor.read(PHONE), strict=True)) == expected


def test_the_title_is_cut_off_the_text_only_where_it_stands_there() -> None:
    extractor = FieldExtractor({"text": "text"})
    assert extractor.read(Document(text="Cats are nice", metadata={"title": "Cat"})) == ["Cats are nice"]
    assert extractor.read(Document(text="Cat: nice", metadata={"title": "Cat"})) == [": nice"]
    assert extractor.read(Document(text="x", fields={"text": "another"})) == ["another"]


def test_a_document_without_any_of_the_fields_is_read_as_the_last() -> None:
    extractor = FieldExtractor.of(["title", "body=metadata.body"])
    assert extractor.read(Document(text="only a text")) == ["", "only a text"]


def test_without_an_order_short_comes_before_long_and_a_warning_names_it() -> None:
    more = [Document(id=str(i), text="t " * 4, fields={"rare": "x"} if not i else {}) for i in range(200)]
    with pytest.warns(FieldsWarning, match="taking title, text, attributes, from short to long"):
        extractor = FieldExtractor.detect([PHONE] * 3 + [*more])
    assert extractor.sources == {"title": "title", "text": "text", "attributes": "attributes"}
    with pytest.warns(FieldsWarning, match="taking title, text"):
        titled = FieldExtractor.detect([Document(text="a b c", metadata={"title": "a"})])
    assert list(titled.sources) == ["title", "text"]
    with pytest.warns(FieldsWarning, match="taking text"):
        paged = FieldExtractor.detect([Document(text="a b c", metadata={"page": 3})])
    assert paged.sources == {"text": "text"}


def chosen(documents: list[Document], **options: Any) -> FieldExtractor:
    return FieldExtractor.for_training(FieldsConfig(**options), documents)


def test_a_field_that_is_nowhere_is_named_with_what_there_is() -> None:
    with pytest.raises(InputError, match=r"no document has the field 'colour'.*title.*metadata\.brand.*text"):
        chosen([PHONE], fields=["title", "colour=metadata.color"])
    untitled = Document(text="untitled, and read as a body none the less")
    with pytest.raises(InputError, match="no document has the field 'body'"):
        chosen([PHONE, untitled], fields=["title", "body"])


def test_the_whole_document_is_one_more_field() -> None:
    fields = {"title": "title", "text": "text"}
    assert chosen([PHONE], fields=fields).sources == fields | {"all": "title+text"}
    assert chosen([PHONE], fields=fields, whole=False).sources == fields
    assert chosen([PHONE], fields=fields, attention="full").sources == fields
    for alone in ({"text": "text"}, {"all": "title+text"}):
        assert chosen([PHONE], fields=alone).sources == alone
    with pytest.raises(ConfigError, match=r"'all' is the field that is made of all others.*'every': 'brand'"):
        chosen([PHONE], fields={"title": "title", "all": "brand"})


@pytest.mark.parametrize(
    ("attention", "prompted"), [("triangular", [True, False, False]), ("full", [True, False, False])]
)
def test_a_prompt_precedes_fields_that_attend_to_none_before(
    tmp_path: Path, attention: Any, prompted: list[bool]
) -> None:
    encoder = load_encoder(save_tiny_encoder(tmp_path / "m", prompts={"document": "cat dog: "}), device="cpu")
    config = FieldsConfig(fields=FIELDS, attention=attention)
    backbone, extractor = Backbone.of(encoder), FieldExtractor.of(config.fields)
    start = backbone.tokenise(["cat dog: "])[0]
    found = []
    for document in (shop()[7], replace(shop()[7], metadata={})):
        tokens = field_tokens(backbone, extractor, [document], (9, 9, 9), config.attended)
        found.append([field.row(0).tolist()[: len(start)] == start for field in tokens])
    assert found[0] == prompted
    assert found[1][:2] == [False, True], "without a brand the title is the first"


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return Backbone.of(learner())


def budgets(backbone: Backbone, **options: Any) -> tuple[int, ...]:
    config = FieldsConfig(**{"fields": FIELDS, "whole": False, **options})
    extractor = FieldExtractor.for_training(config, shop())
    return token_budgets(backbone, extractor, shop(), config.replace(fields=extractor.sources))


def test_room_goes_to_the_fields_that_need_it(backbone: Backbone) -> None:
    assert budgets(backbone) == (4, 4, 12), "all that nearly any needs"
    assert budgets(backbone, document_tokens=20) == (4, 4, 5)
    assert budgets(backbone, whole=True) == (4, 4, 12, 62)
    with pytest.raises(ConfigError, match="20 fields of 80 tokens together, but the encoder has room for 62"):
        budgets(backbone, fields={f"title {n}": "title" for n in range(20)})
