from __future__ import annotations

import json

import pytest

from palmette.data import iter_documents, load_data, to_document
from palmette.errors import DuplicateIdError, InputError, NotFoundError
from palmette.types import Document


def test_records():
    record = {
        "id": 7,
        "title": "Lamp",
        "text": "A lamp.",
        "brand": "Acme",
        "size": {"cm": 9},
        "metadata": {"lang": "en"},
    }
    document = to_document(record | {"fields": {"use": "light"}})
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


@pytest.mark.parametrize("title", ["", "Lamp"])
def test_langchain_documents(title):
    langchain = pytest.importorskip("langchain_core.documents")
    metadata = {"title": title, "page": 3}
    found = to_document(langchain.Document(page_content="text", metadata=metadata, id="x"))
    assert found == Document("x", "text", metadata)
    assert to_document(langchain.Document(page_content="text")) == Document(text="text")


def test_llama_index_nodes():
    schema = pytest.importorskip("llama_index.core.schema")
    node = schema.TextNode(text="text", id_="n", metadata={"page": 3})
    assert to_document(node) == Document("n", "text", {"page": 3})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "cannot make a document of int 3"),
        ({"texts": "a"}, "a document needs 'text' or 'title'; got the keys 'texts'"),
        ({"text": "a", "metadata": [1]}, "'metadata' must be an object, got list"),
        ({"text": "a", "id": 1.5}, "a document id must be a str or an int, got 1.5"),
        ({"text": "a", "id": True}, "a document id must be a str or an int, got True"),
    ],
)
def test_what_is_no_document(value, text):
    with pytest.raises(InputError, match=f"document 1: {text}"):
        list(iter_documents(["fine", value]))


def test_text_folder(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / ".git").mkdir()
    for name, text in {
        "b.md": "# B\nbody",
        "sub/a.txt": "alpha",
        ".git/x.txt": "no",
        "empty.md": " ",
        "c.py": "no",
    }.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert [d.id for d in iter_documents(tmp_path)] == ["b.md", "sub/a.txt"]
    assert next(iter_documents(tmp_path / "b.md")) == Document("b.md", "# B\nbody", {"source": "b.md"})
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"bad.txt is not UTF-8"):
        list(iter_documents(tmp_path))
    with pytest.raises(InputError, match=r"bad.txt is not UTF-8"):
        list(iter_documents(tmp_path / "bad.txt"))


def test_document_file_and_corpus_folder(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text(
        "\n".join(json.dumps({"_id": str(n), "text": f"text {n}"}) for n in range(3)), encoding="utf-8"
    )
    assert (
        list(iter_documents(path))
        == list(iter_documents(str(tmp_path)))
        == [Document(str(n), f"text {n}") for n in range(3)]
    )
    with path.open("a", encoding="utf-8") as more:
        more.write('\n{"_id": "1", "text": "other"}')
    with pytest.raises(DuplicateIdError, match="document id '1' has two contents: 'text 1' and 'other'"):
        list(iter_documents(path))


def test_places_without_documents(tmp_path):
    with pytest.raises(InputError, match="no documents in"):
        list(iter_documents(tmp_path))
    with pytest.raises(NotFoundError, match="no file or folder"):
        list(iter_documents(tmp_path / "gone"))
    (tmp_path / "a.pdf").write_bytes(b"%PDF")
    with pytest.raises(InputError, match=r"cannot read '.*a.pdf': expected a folder, .jsonl"):
        list(iter_documents(tmp_path / "a.pdf"))


def test_a_corpus_folder_trains_without_labels(tmp_path):
    text = "One sentence about red apples here. Another one about green pears there. And a last one on plums."
    (tmp_path / "corpus.jsonl").write_text(json.dumps({"_id": "x", "text": text}), encoding="utf-8")
    data = load_data(tmp_path)
    assert (data.labelled, data.corpus[0].id) == (False, "x")


def test_titles_can_be_left_out_of_the_text(tmp_path):
    folder = tmp_path / "beir"
    (folder / "qrels").mkdir(parents=True)
    rows = [
        {"_id": "1", "title": "Lamp", "text": "It shines."},
        {"_id": "2", "title": "Only a title", "text": ""},
    ]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": "light"}))
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\t1\t1\n")
    for titles, first in ((True, "Lamp It shines."), (False, "It shines.")):
        for documents in (
            load_data(folder, titles=titles).corpus,
            list(iter_documents(folder, titles=titles)),
        ):
            assert [document.text for document in documents] == [first, "Only a title"]
            assert documents[0].metadata == {"title": "Lamp"}


def test_an_empty_path_and_our_own_folders_are_no_documents(tmp_path):
    (tmp_path / "ckpt").mkdir()
    (tmp_path / "ckpt" / "manifest.json").write_text("{}")
    (tmp_path / "ckpt" / "README.md").write_text("a card")
    for read in (load_data, lambda path: list(iter_documents(path))):
        with pytest.raises(InputError, match="empty"):
            read("")
        with pytest.raises(InputError, match="an index or a checkpoint"):
            read(tmp_path / "ckpt")
