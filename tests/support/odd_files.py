"""Odd files of every kind, made from fixed seeds: what each is, and whether it is read or refused."""

from __future__ import annotations

import gzip
import io
import json
import random
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


class Odd(NamedTuple):
    """A file, and a word of the reason for which it is refused; nothing where it is read."""

    content: bytes
    reason: str = ""


HALF, BARCODE = "\ud800", 40123456789012345678
DRAW = random.Random(56)
NS = "http://schemas.openxmlformats.org"
LAUGHS = '<!DOCTYPE x [<!ENTITY a "ha">' + "".join(
    f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


def zipped(parts: Mapping[str, str | bytes]) -> bytes:
    """An archive of named parts."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return file.getvalue()


def text_files() -> Iterator[tuple[str, Odd]]:
    """Texts, notebooks, records and pages."""
    cell = {"cell_type": "markdown", "source": f"owl {HALF} hen"}
    book = {"cells": [cell], "metadata": {"language_info": {"name": HALF}}}
    yield "half.ipynb", Odd(json.dumps(book).encode())
    yield "abyss.ipynb", Odd(b"[" * 100_000 + b"]" * 100_000, "nested too deeply")
    yield "words.ipynb", Odd(b"no notebook", "cannot be read")
    yield "list.ipynb", Odd(b"[1]", "no notebook")
    yield "number.ipynb", Odd(b'{"cells": 3}', "cannot be read")
    rows: dict[str, tuple[Any, ...]] = {
        "half": ({"text": HALF}, {"text": "owl", HALF: HALF}, {"id": HALF, "text": "owl"}),
        "barcode": ({"text": "owl", "barcode": BARCODE}, {"text": "owl", "fields": {"code": [-(2**64)]}}),
        "deep": ({"text": "owl", "deep": nested(150)}, {"text": "owl", "metadata": {"deep": nested(150)}}),
    }
    for name, records in rows.items():
        yield f"{name}.jsonl", Odd("\n".join(map(json.dumps, records)).encode())
    yield "infinite.jsonl", Odd(b'{"text": "owl", "limit": 1e999}')
    yield "nan.jsonl", Odd(b'{"text": "owl", "limit": NaN}', "line 1")
    yield "abyss.jsonl", Odd(b'{"text": "owl", "deep": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "line 1")
    yield "line.jsonl", Odd(b'{"text": "owl"}\n{"text": 3}\n{"text": "hen"}\n{', "line 2")
    yield "many.jsonl", Odd(b"{\n" * 5000, "more than 100 of its records")
    yield "digits.jsonl", Odd(b'{"text": "owl", "n": ' + b"9" * 5000 + b"}", "line 1")
    yield "cells.csv", Odd(b"text,n\nowl,1\nhen,2,3\nant,4\n", "line 3: more cells")
    yield "quote.csv", Odd(b'text,n\nowl,1\n"hen,2\n', "as a table")
    yield "columns.csv", Odd(b"text,text\nowl,1\n", "two columns")
    yield "latin.csv", Odd("text\nkäse\n".encode("latin-1"), "as a table")
    yield "words.csv.gz", Odd(b"text\nowl\n", "as a table")
    yield "half.csv.gz", Odd(gzip.compress(b"text\n" + b"owl sings\n" * 999)[:40], "as a table")
    yield "bomb.jsonl.gz", Odd(gzip.compress(b'{"text": "' + b"a" * 20_000_000 + b'"}'), "unpacks to more")
    for name, value in {"barcode": BARCODE, "infinite": ".inf", "nan": ".nan", "half": '"\\ud800"'}.items():
        yield f"{name}.md", Odd(f"---\nvalue: {value}\nkept: 1\n---\nThe owl.".encode())
    for name, value in {"hexadecimal": "0x" + "f" * 9000, "binary": "!!binary aGVsbG8=", "set": "!!set {a, b}"}.items():
        yield f"{name}.md", Odd(f"---\nvalue: {value}\nkept: 1\n---\nThe owl.".encode())
    yield "deep.md", Odd(f"---\nvalue: {'[' * 120 + ']' * 120}\nkept: 1\n---\nThe owl.".encode())
    yield "date.md", Odd(b"---\nvalue: 2024-13-45\n---\nThe owl.")
    yield "alias.md", Odd(b"---\na: &a [owl]\nb: [*a, *a]\n---\nThe owl.")
    yield "zero.md", Odd(b"owl \0\1\2", "zero bytes")
    yield "blank.md", Odd(b" \n\t\n", "blank")
    yield "mark.txt", Odd(b"\xef\xbb\xbf", "blank")
    yield "cut.txt", Odd(b"\xff\xfe\x00", "cannot be read")
    yield "noise.txt", Odd(bytes(DRAW.randrange(1, 256) for _ in range(50_000)), "no text in any encoding")
    yield "escapes.txt", Odd(b"# coding: unicode_escape\n\\ud800 owl \xff")
    yield "long.txt", Odd(b"a" * (2**23 + 1), "8,388,609 characters")
    yield "quotes.md", Odd(b"> " * 3000 + b"owl")
    yield "brackets.md", Odd(b"[" * 50_000 + b" owl")
    yield "items.md", Odd(b"".join(b"  " * n + b"- owl\n" for n in range(300)))
    yield "brackets.py", Odd(b"x = " + b"(" * 50_000)
    yield "signs.py", Odd(b"x = " + b"-" * 50_000 + b"1")
    yield "deep.html", Odd(b"<div>" * 2500 + b"owl", "nested too deeply")
    yield "script.html", Odd(b"<script>owl</script>", "no text")
    yield "broken.html", Odd(b"<p>owl <a href='" + b"<" * 5000)
    yield "tags.html", Odd(b"<p>owl</p>" * 6000)
    yield "wide.html", Odd(b"<p>" * 100_001, "100,001 tags")


def nested(depth: int) -> Any:
    """Lists in lists."""
    value: Any = "owl"
    for _ in range(depth):
        value = [value]
    return value


def office_files() -> Iterator[tuple[str, Odd]]:
    """PDF, Word, PowerPoint, Excel and EPUB files."""
    page = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] /Contents 4 0 R >>"
    yield "words.pdf", Odd(b"no PDF", "cannot be read")
    yield "head.pdf", Odd(b"%PDF-1.7\n", "cannot be read")
    yield "circle.pdf", Odd(pdf(b"<< /Type /Pages /Kids [2 0 R] /Count 1 >>", page, b""), "cyclic")
    yield "bomb.pdf", Odd(pdf(b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>", page, b"\0" * 99_000_000), "no text")
    other = zipped({"a.txt": "owl"})
    for suffix in ("docx", "pptx", "xlsx", "epub"):
        yield f"words.{suffix}", Odd(b"no archive", "it is no")
        yield f"cut.{suffix}", Odd(other[:40], "it is no")
        yield f"other.{suffix}", Odd(other, "cannot be read")
    yield "bomb.docx", Odd(zipped({"a.xml": b"\0" * 20_000_000}), "unpacks to 20,000,000")
    deep = "<w:sdt><w:sdtContent>" * 3000 + "</w:sdtContent></w:sdt>" * 3000
    body = f'<w:document xmlns:w="{NS}/wordprocessingml/2006/main"><w:body>{"{}"}</w:body></w:document>'
    yield ("deep.docx", Odd(word(body.format(deep)), "nested too deeply"))
    yield "laughs.docx", Odd(word(f"{LAUGHS}]>{body.format('<w:p><w:r><w:t>&i;</w:t></w:r></w:p>')}"), "cannot be read")
    cells = {"far": ("A1", "XFD1048576"), "tail": ("A1", "A300000"), "row": ("A1", "XFD1")}
    for name, places in cells.items():
        yield f"{name}.xlsx", Odd(workbook({place: "owl" for place in places}))
    sheet = [f'<row r="{n}"><c r="{column(n)}{n}" t="s"><v>0</v></c></row>' for n in range(1, 3001)]
    yield "diagonal.xlsx", Odd(workbook({}, "".join(sheet)))
    same = '<row><c t="s"><v>0</v></c></row>' * 9000
    yield "shared.xlsx", Odd(workbook({}, same, "owl " * 9000), "characters")
    yield (
        "place.xlsx",
        Odd(workbook({}, '<row r="1"><c r="A1"><v>1</v></c></row><row r="2"><c r="?"/></row>'), "sheet 'Sheet', row 2"),
    )
    yield "spine.epub", Odd(epub('<itemref idref="a"/>' * 9000))
    yield "laughs.epub", Odd(epub('<itemref idref="a"/>', f"{LAUGHS}]>"), "cannot be read")


def pdf(pages: bytes, page: bytes, words: bytes) -> bytes:
    """A PDF of one page, whose words are packed."""
    import zlib

    packed = zlib.compress(words, 9)
    stream = b"<< /Filter /FlateDecode /Length %d >>\nstream\n%s\nendstream" % (len(packed), packed)
    content, places = b"%PDF-1.7\n", list[int]()
    for number, thing in enumerate([b"<< /Type /Catalog /Pages 2 0 R >>", pages, page, stream], 1):
        places.append(len(content))
        content += b"%d 0 obj\n%s\nendobj\n" % (number, thing)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    return content + b"xref\n0 5\n0000000000 65535 f \n%strailer\n<< /Root 1 0 R /Size 5 >>\nstartxref\n%d\n%%%%EOF" % (
        table, len(content),
    )  # fmt: skip


def word(document: str) -> bytes:
    """A Word file with this document."""
    content = f'<Types xmlns="{NS}/package/2006/content-types"/>'
    kind = f"{NS}/officeDocument/2006/relationships/officeDocument"
    relation = f'<Relationship Id="r1" Type="{kind}" Target="word/document.xml"/>'
    relations = f'<Relationships xmlns="{NS}/package/2006/relationships">{relation}</Relationships>'
    return zipped({"[Content_Types].xml": content, "_rels/.rels": relations, "word/document.xml": document})


def workbook(cells: Mapping[str, str], rows: str = "", shared: str = "owl") -> bytes:
    """A workbook with cells of one sheet, or with rows of XML in their place."""
    import openpyxl

    book, file = openpyxl.Workbook(), io.BytesIO()
    for place, value in cells.items():
        book.active[place] = value
    book.save(file)
    if not rows:
        return file.getvalue()
    with zipfile.ZipFile(file) as archive:
        parts: dict[str, Any] = {name: archive.read(name) for name in archive.namelist()}
    sheet = parts["xl/worksheets/sheet1.xml"].decode()
    before, _, after = sheet.partition("<sheetData>")
    parts["xl/worksheets/sheet1.xml"] = f"{before}<sheetData>{rows}</sheetData>{after.partition('</sheetData>')[2]}"
    parts["xl/sharedStrings.xml"] = f'<sst xmlns="{NS}/spreadsheetml/2006/main"><si><t>{shared}</t></si></sst>'
    kind = "application/vnd.openxmlformats-officedocument.spreadsheetml.sharedStrings+xml"
    types = parts["[Content_Types].xml"].decode()
    listed = f'<Override PartName="/xl/sharedStrings.xml" ContentType="{kind}"/></Types>'
    parts["[Content_Types].xml"] = types.replace("</Types>", listed)
    return zipped(parts)


def column(number: int) -> str:
    """Letters of a column."""
    from openpyxl.utils import get_column_letter

    return str(get_column_letter(number))


def epub(spine: str, head: str = "") -> bytes:
    """A book of one page with this spine."""
    roots = '<rootfiles><rootfile full-path="book.opf"/></rootfiles>'
    container = f'<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container">{roots}</container>'
    items = '<manifest><item id="a" href="a.xhtml"/></manifest>'
    package = f'{head}<package xmlns="http://www.idpf.org/2007/opf">{items}<spine>{spine}</spine></package>'
    parts = {"META-INF/container.xml": container, "book.opf": package, "a.xhtml": "<h1>Owls</h1><p>They sing.</p>"}
    return zipped(parts)
