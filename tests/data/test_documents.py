"""Documents from records, the frameworks' documents, texts and tables; passages of long texts."""

from __future__ import annotations

import gzip
import json

import pytest

from palmette.data import iter_documents, load_data, to_document
from palmette.errors import InputError, NotFoundError
from palmette.types import Document


def test_records():
    record = {"id": 7, "title": "Lamp", "text": "A lamp.", "brand": "Acme", "size": {"cm": 9}}
    document = to_document(record | {"metadata": {"lang": "en"}, "fields": {"use": "light"}})
    assert (document.id, document.text) == ("7", "Lamp A lamp.")
    assert document.metadata == {"title": "Lamp", "brand": "Acme", "lang": "en"}
    assert document.fields == {"title": "Lamp", "size": {"cm": 9}, "use": "light"}


@pytest.mark.parametrize(
    ("title", "text", "joined"),
    [("A", "A b", "A b"), ("A", "b", "A b"), ("", "b", "b"), ("A", "", "A"), (None, " b ", "b")],
)
def test_title_and_text_are_joined_once(title, text, joined):
    assert to_document({"title": title, "text": text}).text == joined


def test_without_an_id_the_content_is_the_id():
    assert to_document("same").id == to_document({"text": "same"}).id != to_document("other").id
    assert [d.text for d in iter_documents(["a", "b", "a"])] == ["a", "b"]


def test_the_frameworks_documents():
    langchain = pytest.importorskip("langchain_core.documents")
    for title in ("", "Lamp"):
        metadata = {"title": title, "page": 3}
        found = to_document(langchain.Document(page_content="text", metadata=metadata, id="x"))
        assert found == Document("x", "text", metadata)
    assert to_document(langchain.Document(page_content="text")) == Document(text="text")
    schema = pytest.importorskip("llama_index.core.schema")
    node = schema.TextNode(text="text", id_="n", metadata={"page": 3})
    assert to_document(node) == Document("n", "text", {"page": 3})


def test_a_blank_page_is_named_by_its_source():
    langchain = pytest.importorskip("langchain_core.documents")
    page = langchain.Document(page_content="\n", metadata={"source": "a.pdf", "page": 3, "author": "me"})
    told = "document of source 'a.pdf', page 3 is empty: .*leave it out"
    with pytest.raises(InputError, match=f"^document 0: {told}"):
        list(iter_documents([page]))
    with pytest.raises(InputError, match=f"^{told}"):
        to_document(page)


def test_text_folder(tmp_path):
    texts = {"b.md": "# B\nbody", "sub/a.txt": "alpha", ".git/x.txt": "no", "empty.md": "", "c.png": "no"}
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert [d.id for d in iter_documents(tmp_path)] == ["b.md", "sub/a.txt"]
    assert next(iter_documents(tmp_path / "b.md")) == Document("b.md", "# B\nbody", {"source": "b.md", "title": "B"})


def test_document_file_and_corpus_folder(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text("\n".join(json.dumps({"_id": str(n), "text": f"text {n}"}) for n in range(3)))
    expected = [Document(str(n), f"text {n}") for n in range(3)]
    assert list(iter_documents(path)) == list(iter_documents(str(tmp_path))) == expected


def test_places_without_documents(tmp_path):
    with pytest.raises(InputError, match="no documents in"):
        list(iter_documents(tmp_path))
    with pytest.raises(NotFoundError, match="no file or folder"):
        list(iter_documents(tmp_path / "gone"))
    (tmp_path / "a.png").write_bytes(b"PNG")
    with pytest.raises(InputError, match=r"a\.png: there is no text in \.png files"):
        list(iter_documents(tmp_path / "a.png"))
    with pytest.raises(InputError, match=r"no documents in .*a\.png: no text in \.png files"):
        list(iter_documents(tmp_path))
    (tmp_path / "ckpt").mkdir()
    (tmp_path / "ckpt" / "manifest.json").write_text("{}")
    (tmp_path / "ckpt" / "README.md").write_text("a card")
    for read in (load_data, lambda path: list(iter_documents(path))):
        with pytest.raises(InputError, match="empty"):
            read("")
        for text in ("a long text " * 500, "a\0b", "~nobody-of-that-name/x"):
            with pytest.raises(InputError, match="cannot be a path.*put texts in a list"):
                read(text)
        with pytest.raises(InputError, match="an index or a checkpoint"):
            read(tmp_path / "ckpt")


def test_passages_are_documents_of_their_file(tmp_path):
    words = "word " * 300
    (tmp_path / "long.md").write_text(f"# Bees\n{words}\n## Hives\n{words}")
    (tmp_path / "short.md").write_text("# Wool")
    found = list(iter_documents(tmp_path))
    assert [document.id for document in found] == ["long.md#1", "long.md#2", "short.md"]
    assert {document.metadata["source"] for document in found} == {"long.md", "short.md"}
    assert [document.id for document in iter_documents(tmp_path / "long.md")] == ["long.md#1", "long.md#2"]


def test_a_table_of_products(tmp_path):
    (tmp_path / "shop.csv").write_text(
        "\ufeffid,title,text,brand,price,stock,code\n"
        '7,"Wool, socks","Warm and\nlight.",Ovine,12.50,3,0071\n'
        "8,Cotton socks,,Plant,4,,1e5\n"
        "9,,,Plant,,,\n",
        encoding="utf-8",
    )
    first, second, blank = iter_documents(tmp_path / "shop.csv")
    assert (first.id, first.text) == ("7", "Wool, socks Warm and\nlight.")
    assert first.fields == {"title": "Wool, socks"}
    assert first.metadata == {"title": "Wool, socks", "brand": "Ovine", "price": 12.5, "stock": 3, "code": "0071"}
    assert second.metadata == {"title": "Cotton socks", "brand": "Plant", "price": 4, "code": "1e5"}
    assert (dict(blank.fields), dict(blank.metadata), blank.text) == ({}, {"brand": "Plant"}, "Plant")


def test_other_tables(tmp_path):
    with gzip.open(tmp_path / "shop.tsv.gz", "wt", encoding="utf-8") as file:
        file.write("_id\ttext\na\tone, two\nb\tthree four\n")
    assert [d.text for d in iter_documents(tmp_path / "shop.tsv.gz")] == ["one, two", "three four"]
    table = tmp_path / "a.csv"
    table.write_text("id,name,maker,price\n1,Socks of wool,Ovine,3\n")  # neither text nor title: fields
    (document,) = iter_documents(table)
    assert document.fields == document.metadata == {"name": "Socks of wool", "maker": "Ovine", "price": 3}
    assert document.content == "name: Socks of wool\nmaker: Ovine\nprice: 3"
    table.write_text("id,text\n1," + "word " * 40_000 + "\n")  # a cell may hold a book
    (document,) = iter_documents(table)
    assert len(document.text.split()) == 40_000
    table.write_text("ID,Title,Text,Year\n7,Pears,Pears keep long.,1999\n")
    (document,) = iter_documents(table)
    assert (document.id, document.text, document.metadata["Year"]) == ("7", "Pears keep long.", 1999)
    more = "It goes on with some words. And on again."
    table.write_text("id,title,text\n" + "".join(f"{i},Title number {i},{more}\n" for i in range(20)))
    data = load_data(table)
    assert (data.labelled, len(data.corpus)) == (False, 20)
