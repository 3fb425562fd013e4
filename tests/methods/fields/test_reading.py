"""From documents of all kinds to texts by field."""

import pytest

from palmette import Document
from palmette.errors import ConfigError, InputError
from palmette.methods.fields import FieldsWarning
from palmette.methods.fields.reading import Reader, as_items

PHONE = Document(
    id="phone",
    text="Fruit Phone 4 A phone that rings.",
    metadata={"brand": "Fruit", "specs": {"size": {"inches": 6.10}}, "a.b": "dotted", "tags": ["new", "red"]},
    fields={"title": "Fruit Phone 4", "attributes": {"colour": "red", "ports": ["usb", "audio"], "5g": True}},
)


def test_fields_lie_in_many_places() -> None:
    sources = {
        "brand": "metadata.brand",
        "maker": "brand",
        "size": "specs.size.inches",
        "dotted": "metadata.a.b",
        "tags": "tags",
        "colour": "fields.attributes.colour",
        "title": "title",
        "attributes": "attributes",
        "missing": "metadata.nothing.at.all",
        "all": "metadata.brand+nothing+tags",
        "text": "text",
    }
    assert Reader(sources).read(PHONE) == [
        "Fruit",
        "Fruit",
        "6.1",
        "dotted",
        "new, red",
        "red",
        "Fruit Phone 4",
        "colour: red, ports: usb, audio, 5g: yes",
        "",
        "Fruit new, red",
        "A phone that rings.",
    ]


def test_the_title_is_cut_off_the_text_only_where_it_stands_there() -> None:
    reader = Reader({"text": "text"})
    assert reader.read(Document(text="Cats are nice", metadata={"title": "Cat"})) == ["Cats are nice"]
    assert reader.read(Document(text="Cat: nice", metadata={"title": "Cat"})) == [": nice"]
    assert reader.read(Document(text="x", fields={"text": "another"})) == ["another"]


def test_a_document_without_any_of_the_fields_is_read_as_the_last() -> None:
    reader = Reader.of(["title", "body=metadata.body"])
    assert reader.read(Document(text="only a text")) == ["", "only a text"]


def test_items_say_what_mappings_say() -> None:
    sources = {"title": "title", "brand": "metadata.brand"}
    assert as_items(sources) == ("title", "brand=metadata.brand")
    assert Reader.of(as_items(sources)).sources == sources
    assert as_items("title, brand=metadata.brand") == as_items(sources)
    assert as_items({"text": ["title", "brand"]}) == ("text=title+brand",)
    assert as_items(["a", "b"]) == ("a", "b")
    assert as_items(None) == ()
    for wrong in (["a", "a"], [""], ["=x"]):
        with pytest.raises(ConfigError, match="different names"):
            Reader.of(wrong)


def test_without_an_order_short_comes_before_long_and_a_warning_names_it() -> None:
    more = [Document(id=str(i), text="t " * 4, fields={"rare": "x"} if not i else {}) for i in range(200)]
    with pytest.warns(FieldsWarning, match="taking title, text, attributes, from short to long"):
        reader = Reader.found([PHONE] * 3 + [*more])
    assert reader.sources == {"title": "title", "text": "text", "attributes": "attributes"}
    with pytest.warns(FieldsWarning, match="taking title, text"):
        assert Reader.found([Document(text="a b c", metadata={"title": "a"})]).names == ["title", "text"]
    with pytest.warns(FieldsWarning, match="taking text"):
        assert Reader.found([Document(text="a b c", metadata={"page": 3})]).names == ["text"]


def test_what_was_not_taken_is_named() -> None:
    odd = Document(
        text="long text of a thing",
        metadata={"maker": "Ovine", "price": 3},
        fields={"name": "thing", "a=b": "x", "R+D": "y", "all": "z"},
    )
    with pytest.warns(
        FieldsWarning, match=r"taking name, text, .*; not metadata.maker, fields.a=b, fields.R\+D, fields.all"
    ):
        assert Reader.found([odd]).names == ["name", "text"]


def test_names_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="give a list, not a set"):
        as_items({"title", "text"})
    with pytest.raises(ConfigError, match="'a=b' cannot be a name"):
        as_items({"a=b": "title"})
    with pytest.raises(ConfigError, match="1 cannot be a name"):
        as_items({1: "title"})
    with pytest.raises(ConfigError, match="names must be str, got 1"):
        as_items([1, "title"])
    with pytest.raises(ConfigError, match="'a' is given None"):
        as_items({"a": None})


def test_a_field_that_is_nowhere_is_named_with_what_there_is() -> None:
    with pytest.raises(InputError, match=r"no document has the field 'colour'.*title.*metadata\.brand.*text"):
        Reader.of(["title", "colour=metadata.color"]).check([PHONE])
    Reader.of(["title", "text"]).check([PHONE])
    with pytest.raises(InputError, match="no document has the field 'body'"):
        Reader.of(["title", "body"]).check(
            [PHONE, Document(text="untitled, and read as a body none the less")]
        )
