"""HTML of texts by kind: marks at their characters, code, tables and snippets; nothing hostile gets through."""

from __future__ import annotations

import re
import time
from html.parser import HTMLParser

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from palmette import Document
from palmette.service.render import SHOWN, Marks, plain, render, snippet, text_kind, whole

TAGS = set(
    "a b blockquote br code del div em h1 h2 h3 h4 h5 h6 hr i li mark ol p pre s span strong table tbody td th thead "
    "tr ul".split()
)
ATTRIBUTES = set("class data-line dir href rel scope start tabindex target".split())
NAMES = ("a.md", "a.py", "a.js", "a.rst", "a.txt", "a.csv", "a.html", "a")
PIECES = st.sampled_from(
    [
        "<script>hurt=1</script>", "<img src=x onerror=hurt=1>", "[a](javascript:hurt=1)", "[a](JaVa\tscript:x)",
        "![a](http://evil/x.png)", "[a](data:text/html,<script>)", "[a](//evil/x)", "[a](/x)", "[a](../../x.md)",
        "<javascript:alert(1)>", "[a]: javascript:x 'onload=y'", '[a](b "x\\" onclick=hurt")', "&#106;avascript:",
        "`<b onclick=x>`", "```html\n<script>\n", "| a | <svg onload=x> |\n|---|:-:|\n| b |\n", "# <h onx=1>\n",
        "\x00\f\x1b", "</mark>", "\u202e", "'", '"', "\n\n", "    ", "- ", "> ", "def f(x):\n", "\ue000", "--- \n",
    ]
)  # fmt: skip
TEXTS = st.lists(PIECES | st.text(max_size=8), min_size=1, max_size=14).map("".join).filter(str.strip)


class Checked(HTMLParser):
    """Reads HTML; anything but known tags and attributes, or an address that is no page's, is refused."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open, self.text, self.marked, self.links = list[str](), "", "", list[str]()
        self.feed(html)
        self.close()
        assert self.open == [], "every tag is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS, tag
        for name, value in attrs:
            assert name in ATTRIBUTES, name
            if name == "href":
                assert re.match(r"https?://|#doc=[^/&=\"'<>]+$", value or "", re.IGNORECASE), value
                self.links.append(value or "")
            elif name != "rel":
                assert re.fullmatch(r"[\w-]+", value or ""), (name, value)
        if tag not in ("br", "hr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("br", "hr"):
            assert self.open.pop() == tag, "tags are nested"

    def handle_data(self, data: str) -> None:
        self.text += data
        self.marked += data if "mark" in self.open else ""


@settings(max_examples=150, deadline=None)
@given(text=TEXTS, name=st.sampled_from(NAMES), places=st.lists(st.integers(-5, 300), min_size=6, max_size=6))
@example('[a](x:y)[b](./c:d.md)<http://a"b>', "a.md", [0, 9, 1, 2, 3, 20])
def test_nothing_of_a_hostile_text_is_markup(text: str, name: str, places: list[int]) -> None:
    document = Document(name, text, {"source": name}, {"<b onclick=x>": text} if name == "a.csv" else {})
    sentence, word, around = (tuple(sorted(places[at : at + 2])) for at in (0, 2, 4))
    marks = Marks(sentence, [word], around)
    for html in (whole(document, marks), snippet(document, marks)):
        assert not re.search(r"[\x00-\x08\x0b-\x1f]", html)
        Checked(html)
    Checked(render(text, text_kind(document), marks, id=name))
    Checked(plain(text, marks))


MANUAL = (
    """---
title: Keys
---
# Keys of the *house*

They open **every door** of [the house](plans/house.md), see <https://example.org/>.

| id | price |
|:---|------:|
"""
    + "".join(f"| LH-{1000 + n} | {n}.50 |\n" for n in range(60))
    + """
1. First:

   ```python
   def turn(key):
       return key + 1  # once
   ```
"""
)


@pytest.mark.parametrize(
    "wanted", ["every door of the house", "LH-1044 44.50", "def turn(key): return key + 1", "Keys"]
)
def test_marks_lie_on_their_words(wanted: str) -> None:
    pattern = r"[\s|*\]\[]*".join(map(re.escape, wanted.split()))
    start, end = next((m.start(), m.end()) for m in re.finditer(pattern, MANUAL) if m.start() > 20)
    document = Document("docs/keys.md", MANUAL, {"source": "keys.md"})
    for html in (whole(document, Marks((start, end))), snippet(document, Marks((start, end)))):
        found = Checked(html)
        assert "".join(found.marked.split()) == "".join(wanted.split())
    assert len(found.text) < 3 * SHOWN, "a snippet is short"
    if "LH" in wanted:
        assert "price" in found.text, "a row is read with its header"
        assert "LH-1001" not in found.text


def test_kinds_look_like_what_they_are() -> None:
    html = whole(Document("docs/keys.md", MANUAL, {"source": "keys.md"}), Marks())
    assert "<td>44.50</td>" in html
    assert "<code>def turn(key):\n    return key + 1  # once\n</code>" in html
    assert Checked(html).links == ["#doc=docs%2Fplans%2Fhouse.md", "https://example.org/"]
    code = "import os\n\n\ndef f():\n" + "    x = 1\n" * 40 + "    return os\n"
    at = code.index("return")
    found = snippet(Document("m.py", code), Marks((at, at + 9)), first_line=101)
    assert 'data-line="145"' in found
    assert "<mark>" in found
    assert "import" not in found
    row = Document("t.csv#2", "", {"source": "t.csv"}, {"id": "LH-1", "price": "9"})
    assert '<tr><th scope="row">price</th><td dir="auto"><b>9</b></td></tr>' in snippet(row, Marks(None, [(5, 6)]))
    pages = {"places": {"kind": "page", "marks": [[1, 1], [3, 2]]}}
    assert '>page 2</p><div class="line" data-line="3"' in whole(
        Document("b.pdf", "one\n\ntwo\f", payload=pages), Marks()
    )


def test_snippets_begin_with_a_sentence() -> None:
    text = " ".join(f"Sentence {n} tells of the owl and of its house by the sea." for n in range(60))
    at = text.index("Sentence 40")
    found = Checked(snippet(Document("a.txt", text), Marks((at, at + 50))))
    assert re.match(r"Sentence \d+ tells", found.text)
    assert found.text.rstrip().endswith(".")
    assert len(found.text) <= SHOWN + 60


@pytest.mark.parametrize("text", ["[" * 60_000, "*a " * 40_000, "> " * 5000 + "x", "a&amp;b\n" * 9000, "![a" * 20_000])
def test_long_texts_take_no_long_time(text: str) -> None:
    begun = time.monotonic()
    whole(Document("a.md", text), Marks((5, 2000), [(7, 9)]))
    assert time.monotonic() - begun < 15
