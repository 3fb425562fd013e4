"""Read one file as text: its characters, its title, and the kind that says how it is cut."""

from __future__ import annotations

import json
import logging
import os
import re
import warnings
import zipfile
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE, BOM_UTF32_LE
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from palmette.config import parse_untrusted_json
from palmette.errors import InputError, MissingExtraError, PalmetteError
from palmette.machine.files import open_source
from palmette.sources.blocks import blocks_of, front_matter
from palmette.sources.kinds import RECORDS as RECORDS
from palmette.sources.kinds import kind_of as kind_of
from palmette.sources.records import (
    RATIO,
    SMALL,
    TEXT_KEYS,
    from_record,
    from_row,
    located,
    read_jsonl,
    read_table,
    read_whole,
    separator,
)
from palmette.types import LONGEST_DOCUMENT
from palmette.types.values import json_value

PAGE_BREAK = "\f"
"""What stands between the pages of a PDF, each on a line of its own."""
_PROBED = 65_536  # bytes of a file in which a zero says that it holds no text
_DECLARED = re.compile(rb"(?:charset|coding|encoding)\s*[=:]\s*[\"']?\s*([-\w.]{2,40})")
_BOMS = (  # the longer ones first: UTF-32's begins as UTF-16's
    (BOM_UTF32_LE, "utf-32"),
    (BOM_UTF32_BE, "utf-32"),
    (BOM_UTF8, "utf-8-sig"),
    (BOM_UTF16_LE, "utf-16"),
    (BOM_UTF16_BE, "utf-16"),
)
_MOST_BYTES = 4 * LONGEST_DOCUMENT
"""Bytes of a text's file, whose characters are counted once it is read."""
_MOST_TAGS = 100_000
"""Signs that begin a tag in a page; a parsed tag takes 1.3 kilobytes."""
_LONGEST_FRONT_MATTER = 2**16
_MOST_SIGNS = 1000  # of one kind in front matter: parsers take time to the square of lists in lists and dots in names
_HEAD = 4096  # characters among which the first heading is the title
_ASIDE = "script style noscript template svg nav footer aside iframe form button select dialog a.headerlink".split()


@dataclass(frozen=True)
class SourceText:
    """A document of a file, as text.

    Attributes:
        text: What is cut and searched.
        kind: How it is cut: ``markdown``, ``rst``, ``text``, ``code:python`` ….
        title: What the file says that it is called.
        metadata: Further facts that the file states, as JSON values.
        encoding: How its characters were written.
        id: The document's own id, where the file gives one to each of its records.
        fields: Named parts of a record.
    """

    text: str
    kind: str
    title: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    encoding: str = "utf-8"
    id: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)


def read_file(path: Path, root: Path | None = None) -> Iterable[SourceText]:
    """Yield the documents of a file: one, or one for each record of a table or of JSON lines.

    A file that was listed below a ``root`` is read only if it is still there
    (:func:`palmette.machine.files.open_source`).

    Raises:
        InputError: The file cannot be read; it and the reason are named.
        MissingExtraError: The file needs a converter that is not installed.
    """
    kind = kind_of(path)
    try:
        if kind is None:
            raise InputError(f"there is no text in {path.suffix.lower()} files")
        for source in _records(path, root) if kind == RECORDS else [_READERS.get(kind, _plain)(path, kind, root)]:
            if len(source.text) > LONGEST_DOCUMENT:
                raise InputError(f"it has {len(source.text):,} characters, and may have {LONGEST_DOCUMENT:,}: split it")
            yield source
    except MissingExtraError:
        raise
    except PalmetteError as error:
        named = str(error) if str(path) in str(error) else f"{path}: {error}"
        raise InputError(named) from error
    except Exception as error:  # a converter's own, or the disk's
        reason = " ".join((getattr(error, "strerror", None) or str(error) or type(error).__name__).split())
        raise InputError(f"{path}: cannot be read ({reason[:200]})") from error


def decode(data: bytes) -> tuple[str, str]:
    """Return the characters of a text and the name of their encoding, which is guessed where the text is not UTF-8."""
    for mark, name in _BOMS:
        if data.startswith(mark):
            return data.decode(name), name
    with suppress(UnicodeDecodeError):
        if b"\0" not in data[:_PROBED]:
            return data.decode("utf-8"), "utf-8"
    return _guessed(data)


def _guessed(data: bytes) -> tuple[str, str]:
    """Return the characters of a text that is not UTF-8: as it says of itself, else as its letters look."""
    zeros = [data[start:_PROBED:2].count(0) for start in (0, 1)]
    if any(zeros):
        if max(zeros) > len(data[:_PROBED]) / 4 and not min(zeros):  # UTF-16 of mostly European letters
            name = "utf-16-be" if zeros[0] else "utf-16-le"
            return data.decode(name), name
        raise InputError("it holds zero bytes: not a text")
    if declared := _DECLARED.search(data[:2048]):
        with suppress(LookupError, UnicodeDecodeError):
            name = declared[1].decode("ascii", "replace").lower()
            return data.decode(name), name
    from charset_normalizer import from_bytes

    best = from_bytes(data[:1_000_000]).best()
    if best is None:
        raise InputError("its bytes are no text in any encoding that is known")
    try:
        return data.decode(best.encoding), str(best.encoding).replace("_", "-")
    except UnicodeDecodeError as error:
        raise InputError(f"it looks like {best.encoding} and is not ({error})") from error


def _text(path: Path, root: Path | None) -> tuple[str, str]:
    text, encoding = decode(read_whole(path, root, _MOST_BYTES))
    if text.isspace() or not text:
        raise InputError("it is blank")
    return text, encoding


def _plain(path: Path, kind: str, root: Path | None) -> SourceText:
    text, encoding = _text(path, root)
    return SourceText(text, kind, encoding=encoding)


def _markdown(path: Path, kind: str, root: Path | None) -> SourceText:
    text, encoding = _text(path, root)
    head = front_matter(text)
    facts = _facts(head)
    title = facts.pop("title", None)
    if not isinstance(title, str) or not title.strip():
        title = _first_heading(text[len(head) :])
    return SourceText(text, kind, title, facts, encoding)


def _first_heading(text: str, kind: str = "markdown") -> str | None:
    """Return the first heading of the highest level near the head of a text."""
    blocks = blocks_of(text[:_HEAD], kind)
    return next((block.name for block in blocks if block.kind == "heading" and block.level == 1), None)


def _facts(head: str) -> dict[str, Any]:
    """Return the metadata of front matter as JSON values; none where it is not what it seems."""
    if not head or len(head) > _LONGEST_FRONT_MATTER:
        return {}
    inside = "\n".join(head.strip("\ufeff").strip().splitlines()[1:-1])
    if max(map(inside.count, "[{")) > _MOST_SIGNS or any(line.count(".") > _MOST_SIGNS for line in inside.splitlines()):
        return {}
    with suppress(Exception):  # a file with broken metadata is still worth reading
        values = _toml(inside) if head.lstrip("\ufeff").startswith("+++") else _yaml(inside)
        if isinstance(values, Mapping):
            facts = {str(key): json_value(value) for key, value in values.items() if value is not None}
            json.dumps(facts, allow_nan=False)
            return facts
    return {}


def _toml(text: str) -> Any:
    import tomllib

    return tomllib.loads(text)


def _yaml(text: str) -> Any:
    import yaml

    if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text, yaml.SafeLoader)):
        raise InputError("aliases unfold without limit")
    return yaml.safe_load(text)


def _rst(path: Path, kind: str, root: Path | None) -> SourceText:
    text, encoding = _text(path, root)
    return SourceText(text, kind, _first_heading(text, kind), {}, encoding)


def _html(path: Path, kind: str, root: Path | None) -> SourceText:
    source, encoding = _text(path, root)
    text, title = html_to_markdown(source)
    if not text.strip():
        raise InputError("the page has no text")
    return SourceText(text, "markdown", title, {}, encoding)


def html_to_markdown(source: str) -> tuple[str, str | None]:
    """Return the text of a page as Markdown, and its title.

    Menus, footers, forms and scripts are left out, and all but the main part where the page says which one it is.
    """
    from bs4 import BeautifulSoup
    from markdownify import MarkdownConverter

    end = source.rfind(">") + 1  # signs after it begin no tag, and the parser reads on to the end from each
    source = source[:end] + source[end:].replace("<", "&lt;")
    if (tags := source.count("<")) > _MOST_TAGS:
        raise InputError(f"the page has {tags:,} tags, and may have {_MOST_TAGS:,}: split it, or save it as text")
    page: Any = BeautifulSoup(source, "html.parser")
    title = " ".join(page.title.get_text().split()) if page.title else ""
    for part in page.select(", ".join([*_ASIDE, "head"])):
        part.decompose()
    articles = page.find_all("article")
    main = page.find("main") or page.find(attrs={"role": "main"}) or (articles[0] if len(articles) == 1 else page)
    converter = MarkdownConverter(
        heading_style="ATX",
        bullets="-",
        strip=["a", "b", "strong", "em", "i", "img"],
        table_infer_header=True,
        escape_asterisks=False,
        escape_underscores=False,
        code_language_callback=_language,
    )
    text = converter.convert_soup(main)
    return re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE).strip("\n") + "\n", title or None


def _language(element: Any) -> str:
    """Return the language that a page names for a block of code."""
    around = [element, element.find("code"), element.parent, element.parent and element.parent.parent]
    classes = " ".join(name for element in around if element for name in element.get("class") or ())
    match = re.search(r"(?:lang(?:uage)?|highlight|brush)[-:](?:source-)?(?!default)([\w+#-]+)", classes)
    return match[1] if match else ""


def _notebook(path: Path, kind: str, root: Path | None) -> SourceText:
    """Return the cells of a notebook: text as it is, code in fences; results are left out."""
    source, encoding = _text(path, root)
    book = parse_untrusted_json(source)
    if not isinstance(book, Mapping):
        raise InputError("it is no notebook: expected a JSON object")
    sheets = book.get("worksheets") or [book]  # version 3 had sheets
    cells = [cell for sheet in sheets for cell in sheet.get("cells") or ()]
    facts = book.get("metadata") or {}
    language = str((facts.get("language_info") or facts.get("kernelspec") or {}).get("name") or "python")
    language = "python" if language.startswith("python") else language
    text = "\n\n".join(part for cell in cells if (part := _cell(cell, language)))
    if not text:
        raise InputError("the notebook has no cells with text")
    return SourceText(text + "\n", "markdown", _first_heading(text), {"language": language}, encoding)


def _cell(cell: Mapping[str, Any], language: str) -> str:
    """Convert a notebook's cell to Markdown."""
    lines = cell.get("source", cell.get("input", ""))
    text = ("".join(lines) if isinstance(lines, list) else str(lines)).strip("\n")
    if not text.strip():
        return ""
    if cell.get("cell_type") == "code":
        return fenced(text, language)
    if cell.get("cell_type") == "heading":
        return "#" * min(6, int(cell.get("level") or 1)) + " " + text
    return text


def fenced(text: str, language: str = "") -> str:
    """Return code in a fence that is longer than any in it."""
    marks = "`" * (1 + max([2, *map(len, re.findall("`+", text))]))
    return f"{marks}{language}\n{text}\n{marks}"


def _records(path: Path, root: Path | None) -> Iterator[SourceText]:
    """Yield the rows of a table or a JSONL file as texts, each with its own id and metadata."""
    rows = read_table(path, TEXT_KEYS, root) if separator(path) else read_jsonl(path, root)
    convert = from_row if separator(path) else from_record
    for place, row in rows:
        with located(place):
            document = convert(row, titles=False)
        title = document.metadata.get("title")
        own = document.key if any(key in row for key in ("_id", "id")) else None
        yield SourceText(document.content, "text", title, document.metadata, "utf-8", own, document.fields)


def _pdf(path: Path, kind: str, root: Path | None) -> SourceText:
    """Return the text of a PDF page by page, as it is printed: there are no headings in it."""
    try:
        from pypdf import PdfReader
    except ImportError as error:
        raise MissingExtraError("pypdf", "files", "reading PDF files") from error
    logger = logging.getLogger("pypdf")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # it tells of every flaw of a file that it can read all the same
    try:
        with open_source(path, root) as file:
            reader = PdfReader(file)
            pages = [page.extract_text().strip() for page in reader.pages]
            title = reader.metadata.title if reader.metadata else None
    finally:
        logger.setLevel(level)
    if not any(pages):
        raise InputError("no text was found in it: its pages may be pictures, which need character recognition")
    text = f"\n{PAGE_BREAK}\n".join(pages).encode("utf-8", "replace").decode()  # lone surrogates of odd fonts
    title = title.strip() if isinstance(title, str) else ""
    return SourceText(text, "text", title or None, {"pages": len(pages)})


def _office(path: Path, kind: str, root: Path | None) -> SourceText:
    """Return what the converter makes of a document of an office program, or of a book."""
    suffix = path.suffix.lower()
    convert, info = _converter(suffix)
    with warnings.catch_warnings(), open_source(path, root) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                unpacked = sum(entry.file_size for entry in archive.infolist())
        except zipfile.BadZipFile as error:
            raise InputError(f"it is no {suffix} file, or a part of one ({error})") from error
        if unpacked > max(SMALL, RATIO // 4 * os.fstat(file.fileno()).st_size):  # real ones reach 20 times
            raise InputError(f"it unpacks to {unpacked:,} bytes: open it, if you trust it, and save it as text")
        warnings.simplefilter("ignore")  # of libraries, about files of others
        file.seek(0)
        result = convert(file, info)
    text = str(result.markdown)
    if not text.strip():
        raise InputError("no text was found in it")
    return SourceText(text, "markdown", result.title or _first_heading(text), {}, "utf-8")


def _converter(suffix: str) -> tuple[Callable[..., Any], Any]:
    """Return the converter of files with a suffix and what it wants to be told."""
    try:
        from markitdown import StreamInfo, converters
    except ImportError as error:
        raise MissingExtraError("markitdown", "files", "reading Word, PowerPoint, Excel and EPUB files") from error
    name = f"{suffix[1:].capitalize()}Converter"
    return getattr(converters, name)().convert, StreamInfo(extension=suffix)


_READERS: Mapping[str, Callable[[Path, str, Path | None], SourceText]] = {
    "markdown": _markdown,
    "mdx": _markdown,
    "rst": _rst,
    "html": _html,
    "notebook": _notebook,
    "office": _office,
    "pdf": _pdf,
}
