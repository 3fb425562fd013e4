"""Documents from tables."""

import gzip

import pytest

from palmette.data import iter_documents, load_data
from palmette.data.files import read_table
from palmette.errors import InputError

TABLE = (
    "\ufeffid,title,text,brand,price,stock,code\n"
    '7,"Wool, socks","Warm and\nlight.",Ovine,12.50,3,0071\n'
    "8,Cotton socks,,Plant,4,,1e5\n"
)


def test_a_table_of_products(tmp_path) -> None:
    (tmp_path / "shop.csv").write_text(TABLE, encoding="utf-8")
    first, second = iter_documents(tmp_path / "shop.csv")
    assert (first.id, first.text) == ("7", "Wool, socks Warm and\nlight.")
    assert first.fields == {"title": "Wool, socks"}
    assert first.metadata == {
        "title": "Wool, socks",
        "brand": "Ovine",
        "price": 12.5,
        "stock": 3,
        "code": "0071",
    }
    assert second.metadata == {"title": "Cotton socks", "brand": "Plant", "price": 4, "code": "1e5"}


def test_tabs_and_gzip(tmp_path) -> None:
    with gzip.open(tmp_path / "shop.tsv.gz", "wt", encoding="utf-8") as file:
        file.write("_id\ttext\na\tone, two\nb\tthree four\n")
    assert [d.text for d in iter_documents(tmp_path / "shop.tsv.gz")] == ["one, two", "three four"]


def test_without_text_and_title_columns_are_fields(tmp_path) -> None:
    (tmp_path / "shop.csv").write_text("id,name,maker,price\n1,Socks of wool,Ovine,3\n")
    (document,) = iter_documents(tmp_path / "shop.csv")
    assert document.fields == document.metadata == {"name": "Socks of wool", "maker": "Ovine", "price": 3}
    assert document.content == "Socks of wool\nOvine\n3"


def test_one_blank_row_changes_nothing_for_the_others(tmp_path) -> None:
    (tmp_path / "shop.csv").write_text("id,title,text,brand\n1,Socks,Of wool,Ovine\n2,,,Plant\n")
    first, second = iter_documents(tmp_path / "shop.csv")
    assert set(first.fields) == {"title"}
    assert (dict(second.fields), dict(second.metadata), second.text) == ({}, {"brand": "Plant"}, "Plant")


def test_a_cell_may_hold_a_book(tmp_path) -> None:
    (tmp_path / "shop.csv").write_text("id,text\n1," + "word " * 40_000 + "\n")
    (document,) = iter_documents(tmp_path / "shop.csv")
    assert len(document.text.split()) == 40_000


def test_a_table_alone_can_be_trained_on(tmp_path) -> None:
    rows = "".join(
        f"{i},Title number {i} of many,Some words of text number {i} that go on. And on again.\n"
        for i in range(20)
    )
    (tmp_path / "shop.csv").write_text("id,title,text\n" + rows)
    data = load_data(tmp_path / "shop.csv")
    assert not data.labelled
    assert len(data.corpus) == 20


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"id,text\n1,a,b\n", r"shop.csv:2: more cells than the heading has columns \(id, text\)"),
        (b"id,text\n1,\xff\n", "cannot be read as a table"),
        (b'id,text\n1,"open\n', "cannot be read as a table"),
        (b"id,text\n1,a\n1,b\n", "document id '1' has two contents"),
        (b"", "there are no documents"),
        (b",id,text\n0,1,a\n", "column 1 has no name"),
        (b"id,text,text\n1,a,b\n", "two columns are named 'text'"),
        (b"id;text\n1;a\n", "seem to be parted by ';'"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(content: bytes, words: str, tmp_path) -> None:
    (tmp_path / "shop.csv").write_bytes(content)
    with pytest.raises(InputError, match=words):
        list(iter_documents(tmp_path / "shop.csv"))


@pytest.mark.parametrize(
    ("heading", "names"),
    [
        ("ID,Title,TEXT", ["id", "title", "text"]),
        ("_Id,text,Text", ["_id", "text", "Text"]),
        ("TEXT,Text,Year", ["TEXT", "Text", "Year"]),
    ],
)
def test_capitals_do_not_hide_what_a_column_is(heading: str, names: list[str], tmp_path) -> None:
    table = tmp_path / "a.csv"
    table.write_text(f"{heading}\n7,b,c\n")
    assert [list(row) for _, row in read_table(table)] == [names]


def test_a_table_in_capitals_has_texts_titles_and_ids(tmp_path) -> None:
    table = tmp_path / "a.csv"
    table.write_text("ID,Title,Text,Year\n7,Pears,Pears keep long.,1999\n")
    (document,) = iter_documents(table)
    assert (document.id, document.text, document.metadata["Year"]) == ("7", "Pears keep long.", 1999)
