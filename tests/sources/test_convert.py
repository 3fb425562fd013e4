"""Files of every kind are read as text, or refused by a reason that names them."""

import gzip
import json
import re
import sys
import time

import pytest

from palmette.errors import InputError, MissingExtraError
from palmette.sources.blocks import blocks_of
from palmette.sources.convert import SourceText, decode, html_to_markdown, kind_of, read_file
from palmette.store.protocols import StoredDocument
from palmette.types import Document, cite, numbered
from support.odd_files import NS, epub, word


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def test_kinds_by_name(tmp_path):
    kinds = {
        "a.md": "markdown",
        "a.MDX": "mdx",
        "a.rst": "rst",
        "a.htm": "html",
        "a.py": "code:python",
        "a.txt": "text",
        "a.log": "text:log",
        "a.yaml": "text:config",
        "a.adoc": "text:asciidoc",
    }
    kinds |= {"a.jsonl.gz": "records", "a.csv": "records", "a.ipynb": "notebook", "a.docx": "office", "LICENSE": "text"}
    kinds |= {"a.png": None, "a.zip": None, "a.rs": "code:rust"}
    assert {name: kind_of(tmp_path / name) for name in kinds} == kinds


def test_markdown_with_front_matter(write):
    text = '---\ntitle: "Pruning"\ndate: 2024-05-01\ntags: [a, b]\ndraft: null\n---\r\n# Cherries\n'
    (document,) = read_file(write("a.md", text))
    facts = {"date": "2024-05-01", "tags": ["a", "b"]}
    assert document == SourceText(text, "markdown", "Pruning", facts)
    (document,) = read_file(write("b.md", "+++\nweight = 3\n+++\n\n# Cherries and `plums`\nWords"))
    assert (document.title, document.metadata) == ("Cherries and plums", {"weight": 3})
    for broken in ("---\na: [\n---\n# T\n", "---\na: &x [1]\nb: *x\n---\n# T\n", "---\n- 1\n---\n# T\n"):
        (document,) = read_file(write("c.md", broken))
        assert (document.text, document.title, document.metadata) == (broken, "T", {})


def test_titles(write):
    assert next(iter(read_file(write("a.rst", "Cats\n====\n\nWords\n")))).title == "Cats"
    assert next(iter(read_file(write("b.md", "[badge](x)\n\nCats\n====\n")))).title == "Cats"
    assert next(iter(read_file(write("c.md", "```\n# no title\n```\n## nor this\n")))).title is None
    assert next(iter(read_file(write("d.py", "# no title\n")))).title is None


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp1252", "cp1251", "shift_jis"]
)
def test_encodings_are_found(encoding):
    text = {
        "cp1251": "Деревья зимой не растут, но весной они цветут и дают плоды каждому, кто их посадил. " * 5,
        "shift_jis": "冬には木は成長しませんが、春には花が咲き、実がなります。庭の手入れを忘れないでください。" * 5,
    }.get(encoding, "Der Baum trägt im Frühling schöne Blüten – und später süße Äpfel für alle Gäste. " * 5)
    assert decode(text.encode(encoding)) == text


def test_a_declared_encoding_is_believed(write):
    (page,) = read_file(write("a.html", '<meta charset="iso-8859-7"><p>Το δέντρο</p>'.encode("iso-8859-7")))
    assert page.text.strip() == "Το δέντρο"
    (code,) = read_file(write("a.py", '# -*- coding: latin-1 -*-\nname = "é"\n'.encode("latin-1")))
    assert '"é"' in code.text


def test_line_ends_and_blanks_stay_as_they_are(write):
    text = "\n\n# A\r\n\r\n\tcode  \r\nwords\r"
    (document,) = read_file(write("a.md", text))
    assert document.text == text


PAGE = """
<html><head><title>Cats — Home</title><style>p {}</style></head><body>
<nav><a href="x">Menu</a></nav><aside>Advert</aside>
<main><h1>Cats<a class="headerlink" href="#cats">¶</a></h1>
<p>They <b>purr</b> and <a href="y">sleep</a>.<script>alert(1)</script></p>
<ul><li>one<ol><li>inner</li></ol></li><li>two</li></ul>
<table><tr><td>a</td><td>b</td></tr><tr><td>1</td><td>2</td></tr></table>
<div class="highlight-sh notranslate"><pre>ls

  -l &lt; x</pre></div></main><footer>© us</footer></body></html>
"""


def test_pages(write):
    (page,) = read_file(write("a.html", PAGE))
    assert (page.kind, page.title) == ("markdown", "Cats — Home")
    assert page.text.startswith("# Cats\n\nThey purr and sleep.\n")
    for part in ("- one\n", "inner", "| a | b |\n| --- | --- |\n| 1 | 2 |", "```sh\nls\n\n  -l < x\n```"):
        assert part in page.text
    for part in ("Menu", "Advert", "alert", "©", "¶", "]("):
        assert part not in page.text
    assert html_to_markdown("<p>no main <i>part</i>") == ("no main part\n", None)
    with pytest.raises(InputError, match=r"b\.html: the page has no text"):
        list(read_file(write("b.html", "<script>x</script>")))


def test_notebooks(write):
    cells = [
        {"cell_type": "markdown", "source": ["# Cats\n", "Words."]},
        {"cell_type": "code", "source": "print('```')\n", "outputs": [{"text": "noise"}]},
        {"cell_type": "code", "source": []},
    ]
    book = {"cells": cells, "metadata": {"kernelspec": {"name": "python3"}}, "nbformat": 4}
    (document,) = read_file(write("a.ipynb", json.dumps(book)))
    assert document.text == "# Cats\nWords.\n\n````python\nprint('```')\n````\n"
    assert (document.title, document.metadata, document.kind) == ("Cats", {"language": "python"}, "markdown")
    for broken in ("[]", "{", '{"cells": []}', '{"cells": [3]}', '{"cells": 3}'):
        with pytest.raises(InputError, match=r"c\.ipynb"):
            list(read_file(write("c.ipynb", broken)))


def test_records(write):
    rows = [{"_id": "x", "title": "Lamp", "text": "Bright.", "price": 3, "size": {"cm": 9}}, {"text": "Other"}]
    path = write("a.jsonl.gz", gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    one, two = read_file(path)
    metadata = {"title": "Lamp", "price": 3}
    fields, place = {"title": "Lamp", "size": {"cm": 9}}, numbered("record", 1)
    assert one == SourceText("Bright.", "text", "Lamp", metadata, "x", fields, place)
    assert (two.text, two.title, two.id) == ("Other", None, None)
    lamps = list(read_file(write("b.csv", "name,price\nLamp,3\nDesk,\n")))
    assert [(lamp.text, lamp.metadata) for lamp in lamps] == [
        ("name: Lamp\nprice: 3", {"name": "Lamp", "price": 3}),
        ("name: Desk", {"name": "Desk"}),
    ]
    with pytest.raises(InputError, match=r"c\.jsonl:2"):
        list(read_file(write("c.jsonl", '{"text": "a"}\n{"texts": "b"}\n')))


# Office files


def docx(*lines):
    """A Word file of a heading and some paragraphs."""
    heading = '<w:p><w:pPr><w:pStyle w:val="Heading1"/></w:pPr><w:r><w:t>Cats</w:t></w:r></w:p>'
    body = heading + "".join(f"<w:p><w:r><w:t>{line}</w:t></w:r></w:p>" for line in lines)
    return word(f'<w:document xmlns:w="{NS}/wordprocessingml/2006/main"><w:body>{body}</w:body></w:document>')


def test_word_and_books(write):
    pytest.importorskip("markitdown")
    book = epub('<itemref idref="a"/>')
    for name, content, title, words in (
        ("a.docx", docx("They purr."), "Cats", "purr"),
        ("a.epub", book, "Owls", "sing"),
    ):
        (document,) = read_file(write(name, content))
        assert (document.kind, document.title) == ("markdown", title)
        assert f"# {title}\n\nThey {words}." in document.text


def test_lines_of_code_in_office_files_are_no_headings(tmp_path, write):
    pytest.importorskip("markitdown")
    pptx = pytest.importorskip("pptx")
    slides = pptx.Presentation()
    slide = slides.slides.add_slide(slides.slide_layouts[1])
    slide.shapes.title.text = "Cats"
    slide.placeholders[1].text = "# feed them\nfeed\n----\n## twice"
    slide.notes_slide.notes_text_frame.text = "They purr."
    slides.save(tmp_path / "a.pptx")
    letter = write("a.docx", docx(" # feed them"))
    for path, headings in ((tmp_path / "a.pptx", ["Cats", "Notes:"]), (letter, ["Cats"])):
        (document,) = read_file(path)
        names = [block.name for block in blocks_of(document.text, document.kind) if block.kind == "heading"]
        assert names == headings
        assert "# feed them" in document.text
        assert "Slide number" not in document.text
        assert document.title == "Cats"


def test_pages_of_a_pdf(tmp_path):
    pytest.importorskip("pypdf")
    pages = pytest.importorskip("matplotlib.backends.backend_pdf")
    with pages.PdfPages(tmp_path / "a.pdf", metadata={"Title": "Cats"}) as book:
        for words in ("They purr.", "They sleep."):
            figure = pytest.importorskip("matplotlib.figure").Figure()
            figure.text(0.1, 0.5, words)
            book.savefig(figure)
    (document,) = read_file(tmp_path / "a.pdf")
    assert document == SourceText(
        "They purr.\n\nThey sleep.",
        "text",
        "Cats",
        {"pages": 2},
        payload={"places": {"kind": "page", "marks": [[1, 1], [3, 2]]}},
    )


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.html", "<p>a" * 100_001, "the page has 100,001 tags, and may have 100,000"),
        ("a.ipynb", '{"cells": [' + "[]," * 2**20 + "[]]}", "more than 1,048,576 commas and brackets"),
        ("a.jsonl", '{"text": "a", "more": [' + "[]," * 2**20 + "[]]}", "more than 1,048,576 commas and brackets"),
        ("a.csv", "text" + "," * (2**18 + 1), "more than 262,144 times ','"),
        ("a.txt", "a" * (2**23 + 1), "8,388,609 characters, and may have 8,388,608"),
        ("a.md", "a" * (2**25 + 1), "33,554,433 bytes, and may have 33,554,432"),
        ("a.jsonl", '{"text": "' + "a" * (2**23 + 1) + '"}', "8,388,609 characters"),
    ],
)
def test_files_that_would_fill_the_memory_are_refused(write, name, content, words):
    with pytest.raises(InputError, match=re.escape(words)):
        list(read_file(write(name, content)))


def test_without_the_converter_the_extra_is_named(write, monkeypatch):
    for module, name in (("markitdown", "a.docx"), ("pypdf", "a.pdf")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(MissingExtraError, match=r"pip install 'palmette\[files\]'"):
            list(read_file(write(name, b"%PDF")))


@pytest.mark.parametrize("sign", ["<a ", "<!-- ", "<a b='", '<a b="x" '])
def test_tags_that_never_end_take_linear_time(sign):
    begun = time.process_time()
    text, _ = html_to_markdown(f"<p>harvest</p>{sign * 100_000}")
    assert text.startswith("harvest")
    assert time.process_time() - begun < 10


@pytest.mark.parametrize("head", ["---\n" + "[" * 60_000 + "\n---\n", "+++\n" + "a." * 30_000 + "b = 1\n+++\n"])
def test_front_matter_of_nested_lists_and_long_names_takes_no_time(write, head):
    begun = time.process_time()
    (document,) = read_file(write("a.md", f"{head}# Harvest\n"))
    assert document.title == "Harvest"
    assert document.metadata == {}
    assert time.process_time() - begun < 2


def test_a_heading_of_many_columns_is_read_in_linear_time(write):
    names = [f"c{number}" for number in range(50_000)]
    begun = time.process_time()
    assert list(read_file(write("a.csv", ",".join(names) + "\n"))) == []
    assert time.process_time() - begun < 5
    with pytest.raises(InputError, match="two columns are named 'c7'"):
        list(read_file(write("b.csv", ",".join([*names, "c7"]) + "\n")))


def test_every_kind_of_file_is_cited_by_the_place_that_a_person_names(tmp_path, write):
    pptx, sheets = pytest.importorskip("pptx"), pytest.importorskip("openpyxl").Workbook()
    slides = pptx.Presentation()
    for words in ("They purr.", "They sleep."):
        slide = slides.slides.add_slide(slides.slide_layouts[1])
        slide.shapes.title.text, slide.placeholders[1].text = "Cats", words
    slides.save(tmp_path / "a.pptx")
    sheets.active.title = "Prices"
    for row in (2, 3, 7, 8):
        sheets.active.cell(row, 1, f"row {row}")
    sheets.create_sheet("Empty")
    sheets.create_sheet("Ages").append(["Tom", 3])
    sheets.save(tmp_path / "a.xlsx")
    cells = [{"cell_type": "markdown", "source": source} for source in ("# Cats", "", "They sleep.")]
    write("a.ipynb", json.dumps({"cells": cells}))
    write("a.csv", "name,age\nTom,3\nIda,4\n")
    write("a.jsonl", '{"text": "one"}\n\n{"text": "They sleep."}\n')
    write("a.txt", "one\f\n\fThey sleep.\nend")

    def cited(name, words):
        for source in read_file(tmp_path / name):
            document = Document(name, source.text, {"source": name}, source.fields, source.payload)
            assert "\f" not in document.content
            start = document.content.find(words)
            if start >= 0:
                place = StoredDocument.whole(document).passages[0]
                return str(cite(document, place, (start, start + len(words))))
        raise AssertionError(words)

    assert cited("a.pptx", "They sleep.") == "a.pptx, slide 2"
    assert cited("a.pptx", "They purr.") == "a.pptx, slide 1"
    assert [cited("a.xlsx", f"row {row}") for row in (2, 3, 7, 8)] == [
        f"a.xlsx \u203a Prices, row {row}" for row in (2, 3, 7, 8)
    ]
    assert cited("a.xlsx", "Tom") == "a.xlsx \u203a Ages, row 1"
    assert cited("a.ipynb", "They sleep.") == "a.ipynb, cell 3"
    assert cited("a.csv", "Ida") == "a.csv, row 3"
    assert cited("a.jsonl", "They sleep.") == "a.jsonl, record 3"
    assert cited("a.txt", "They sleep.") == "a.txt, line 2"
    (source,) = read_file(tmp_path / "a.xlsx")
    document = Document("a.xlsx", source.text, {}, payload=source.payload)
    assert str(cite(document, StoredDocument.whole(document).passages[0])) == "a.xlsx, sheets 1\u20133"
