"""Passages are slices, cover the text, fit, and keep blocks whole."""

import string
import sys
import textwrap
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from palmette.encoder.sentences.splitting import estimate_tokens
from palmette.sources.blocks import _parser, blocks_of
from palmette.sources.passages import PassageOptions, above, split

ENDS = ["\n", "\r\n", "\r"]
KINDS = st.sampled_from(
    "markdown mdx text rst code:python code:javascript html other text:config text:log text:asciidoc".split()
)
LINES = st.sampled_from(
    "# Head|## Sub|Setext|===|---|```|````|~~~ py|    code|\tcode|- item|  - inner|1. one|| a | b |||---|---||> quote|"
    "!!! note|[x]: http://y||||  |def f(x):|    return x|class A:|    def g(self):|        pass|@wraps|# comment|<div>|"
    "plain words here.|term|:   def|+++|\x0b|\x1c|\u2028|\ufeff|\x00|é𝒳 ش中文。次|"
    "one two. Three four! five six|.. note::|   indented|function a(b) {|}|if x: y = 1; z = 2|'''|[a.b]|key: value|"
    'key:|{|],|"a": [|; remark|\tat a.b(c)|2025-01-01 10:00:00 INFO a|Caused by: b|=== a ===|== Title|[[anchor]]|----|'
    "====|+|* item|** inner|term:: what|<1> one|.Title|endif::[]|<Tabs>|</Tabs>|:::note|:::|import a from 'b'|"
    "<Table data={[|]} />|key: >-|{{- end }}".split("|")
)
TEXTS = st.one_of(
    st.text(max_size=300),
    st.tuples(st.lists(LINES, max_size=40), st.sampled_from(ENDS)).map(lambda both: both[1].join(both[0])),
    st.lists(st.tuples(LINES, st.sampled_from([*ENDS, "\n\n", "\t", ""])), max_size=30).map(
        lambda parts: "".join(line + end for line, end in parts)
    ),
)


def count(texts):
    return [len(text.split()) for text in texts]


def slices(text, kind, tokens, **options):
    return [text[one.start : one.end] for one in split(text, kind, PassageOptions(tokens=tokens, **options), count)]


@settings(max_examples=400)
@given(TEXTS, KINDS, st.integers(1, 30))
@example("[0]:0", "markdown", 1)
def test_every_character_but_blanks_is_in_one_passage(text, kind, tokens):
    passages = split(text, kind, PassageOptions(tokens=tokens), count)
    reached = 0
    for passage in passages:
        assert reached <= passage.start < passage.end
        assert not text[reached : passage.start].strip()
        assert len(text[passage.start : passage.end].split()) <= tokens
        reached = passage.end
    assert not text[reached:].strip()


@given(TEXTS, KINDS, st.integers(1, 30))
def test_lines_are_those_of_an_editor(text, kind, tokens):
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for passage in split(text, kind, PassageOptions(tokens=tokens), count):
        piece = text[passage.start : passage.end].replace("\r\n", "\n").replace("\r", "\n")
        between = "\n".join(lines[passage.first_line - 1 : passage.last_line])
        assert piece.strip() in between
        assert piece.count("\n") == passage.last_line - passage.first_line


PARAGRAPH = "Some words that say a thing, and say it well."
BLOCKS = {
    "a fence": "```sh\n# no heading\n\n    indented after a blank line\n```",
    "a fence of four that holds three": "````md\n```py\nx = 1\n```\n\n# no heading\n````",
    "a fence of tildes": "~~~\n```\n# no heading\n~~~",
    "a table": "| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |",
    "an item with code": "- Install it:\n\n  ```sh\n  pip install it\n  ```\n\n  and go on",
    "a quote": "> one\n> two\n>\n> three",
    "an admonition": "!!! note\n    one two\n\n    three four",
    "a definition": "term\n\n:   what it is\n    and more",
    "HTML": "<details>\n<summary>more</summary>\none two three\n</details>",
    "indented code": "    a = 1\n\n    b = 2",
}


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("end", ENDS)
def test_a_block_that_fits_stays_whole(name, end):
    block = BLOCKS[name].replace("\n", end)
    for before in range(1, 6):
        text = (end * 2).join(["# Title", *[PARAGRAPH] * before, block, *[PARAGRAPH] * 3])
        least = len(block.split()) * (3 if name == "a table" else 1)  # a table may fill a third
        for tokens in range(max(20, least), max(45, least + 9), 3):
            holders = [piece for piece in slices(text, "markdown", tokens) if block in piece]
            assert len(holders) == 1, (tokens, before)


def test_what_does_not_fit_is_cut_where_it_hurts_least():
    code = "\n".join(f"line {number} of code" for number in range(40))
    pieces = slices(f"# A\n\nSo:\n\n```\n{code}\n```\n", "markdown", 30)
    assert all(piece.endswith(("of code", "```")) for piece in pieces), "between lines"
    rows = [f"| {number} | word |" for number in range(40)]
    table = "# A\n\n| a | b |\n|---|---|\n" + "\n".join(rows)
    assert all(piece.startswith(("|", "# A")) for piece in slices(table, "markdown", 30))
    wide = [f"| {number} | {'word ' * 15}|" for number in range(5)]  # more than a third each
    pieces = slices("# A\n\n| a | b |\n|---|---|\n" + "\n".join(wide), "markdown", 45)
    assert [[row in piece for row in wide].index(True) for piece in pieces] == [*range(5)], "a row is whole"
    prose = " ".join(f"This is sentence number {number}." for number in range(30))
    assert all(piece.endswith(".") for piece in slices(prose, "text", 25)), "between sentences"
    assert slices("a" * 100, "text", 1) == ["a" * 100], "one word is one token here"
    assert max(map(len, slices("語" * 900, "text", 40))) <= 900
    pieces = [one for one in split("x" * 900, "text", PassageOptions(tokens=40), estimate_tokens)]
    assert sum(one.end - one.start for one in pieces) == 900


def test_sections_stay_apart_where_there_is_room_and_a_heading_stays_with_its_text():
    sections = [f"## Part {number}\n\n{' '.join(['word'] * 30)}" for number in range(4)]
    pieces = slices("# Title\n\n" + "\n\n".join(sections), "markdown", 50)
    assert [piece.splitlines()[0] for piece in pieces] == ["# Title", "## Part 1", "## Part 2", "## Part 3"]


def test_heading_paths():
    text = textwrap.dedent("""\
        ---
        title: Trees
        ---
        # Cherries #
        Words.

        ## `Pruning` in [winter](x.md) {#prune}
        One two three four five six seven eight.

        Setext
        ------
        One two three four five six seven eight.
        ```
        # no heading
        ```
        """)
    options = PassageOptions(tokens=15)
    passages = split(text, "markdown", options, count)
    assert [(one.headings, one.first_line, one.last_line) for one in passages] == [
        (("Cherries",), 1, 5),
        (("Cherries", "Pruning in winter"), 7, 8),
        (("Cherries", "Setext"), 10, 15),
    ]
    assert text[: passages[0].end].startswith("---\ntitle: Trees\n---\n"), "front matter stays"


def test_two_sections_in_a_passage_have_the_path_of_what_holds_both():
    text = "# A\n\n## B\n\none\n\n### C\n\ntwo\n\n## D\n\nthree\n"
    (passage,) = split(text, "markdown", PassageOptions(tokens=100), count)
    assert passage.headings == ("A",)
    long = f"# A\n\n{'word ' * 28}\n\n## B\n\none\n\n## C\n\ntwo\n"
    assert [one.headings for one in split(long, "markdown", PassageOptions(tokens=30), count)] == [("A",), ("A",)]


def test_restructured_text():
    text = textwrap.dedent("""\
        ======
        Manual
        ======

        Words that begin::

            code of

            an example

        Part
        ====

        - one
        - two

        .. note:: keep

           this with it
        """)
    passages = split(text, "rst", PassageOptions(tokens=15), count)
    assert [one.headings for one in passages] == [("Manual",), ("Manual", "Part")]
    assert [(block.kind, block.level) for block in blocks_of(text, "rst")][:2] == [("heading", 1), ("paragraph", 0)]


def test_levels_of_titles_are_those_of_the_whole_restructured_text(monkeypatch):
    monkeypatch.setattr("palmette.sources.passages.STRETCH", 100)
    text = "Manual\n======\n\n" + "".join(f"Part {n}\n------\n\n{'Some words. ' * 8}\n\n" for n in range(9))
    passages = split(text, "rst", PassageOptions(tokens=20), count)
    assert {one.headings[0] for one in passages} == {"Manual"}
    assert passages[-1].headings == ("Manual", "Part 8")


def test_labels_stay_with_the_paragraph_below():
    pieces = slices(f"Use\n---\n\n{'word ' * 14}\n\n.. _last:\n.. _end:\n\nLast words.\n", "rst", 17)
    assert pieces[-1].startswith(".. _last:\n.. _end:\n\nLast words.")


def test_the_first_lines_of_code_stay_with_its_directive():
    code = "\n\n".join(f"    line {n} of some code" for n in range(4))
    for head in ("Call it so::", ".. code-block:: python\n    :linenos:", ".. _x:\n\n.. code-block:: python"):
        for words in range(4, 18):  # of the paragraph before, so that a cut is best at different places
            pieces = slices(f"{'word ' * words}\n\n{head}\n\n{code}\n\nWords.\n", "rst", 18)
            (whole,) = [piece for piece in pieces if head in piece]
            assert "line 0" in whole


def test_fields_and_rows_of_restructured_text_stay_whole():
    fields = "".join(f":param name{n}: words of it\n    that go on\n" for n in range(5))
    assert all(piece.startswith(":param") for piece in slices(fields, "rst", 16))
    border = "+-----+-------+\n"
    rows = [f"| a {n} | one   |\n|     | two   |\n" for n in range(6)]
    table = border + rows[0] + border.replace("-", "=") + border.join(rows[1:]) + border
    pieces = slices(table, "rst", 25)
    assert len(pieces) > 1
    assert all(piece.startswith(border) for piece in pieces)


PYTHON = '''\
"""A module."""

import os


# What a cat is.
@final
class Cat:
    """Purrs."""

    def purr(self):
        # softly
        return """
def no_definition(): pass
"""

    async def sleep(self, hours):
        if hours:
            for hour in range(hours):
                await rest(hour)
        return hours


def feed(cat):
    return cat
'''


def test_python_is_cut_at_definitions():
    passages = split(PYTHON, "code:python", PassageOptions(tokens=16), count)
    pieces = {one.headings: PYTHON[one.start : one.end] for one in passages}
    assert pieces[()].startswith('"""A module."""')
    assert pieces["class Cat", "def purr"].startswith("    def purr(self):")
    assert "def no_definition" in pieces["class Cat", "def purr"]
    assert pieces["class Cat", "def sleep"].startswith("    async def sleep"), "indentation stays"
    assert any('# What a cat is.\n@final\nclass Cat:\n    """Purrs."""' in piece for piece in pieces.values())
    assert pieces["def feed",] == "def feed(cat):\n    return cat"


def test_a_passage_is_named_by_the_definition_that_it_begins_in():
    text = (
        "class A:\n    def f(self):\n        return 1\n\n    def g(self):\n        return 2\n\n\ndef h():\n    pass\n"
    )
    for tokens in range(6, 16):
        for one in split(text, "code:python", PassageOptions(tokens=tokens), count):
            first = text[one.start : one.end].lstrip().split("(")[0].split(":")[0]
            assert not first.startswith(("def", "class")) or one.headings[-1] == first


@pytest.mark.parametrize(
    ("language", "text", "names"),
    [
        (
            "javascript",
            "// adds\nexport function add(a, b) {\n  return a + b\n}\n\nconst twice = (x) => {\n  return 2 * x\n}\n",
            ["export function add", "const twice"],
        ),
        (
            "java",
            "public class Cat {\n    int age;\n\n    public int age(int plus) {\n        return age;\n    }\n}\n",
            ["public class Cat", "public int age"],
        ),
        (
            "go",
            "func (s *Server) Serve(l int) error {\n\treturn nil\n}\n\ntype Cat struct {\n\tage int\n}\n",
            ["func (s *Server) Serve", "type Cat struct"],
        ),
        ("rust", "fn purr<T>(t: T) -> T\nwhere\n    T: Cat,\n{\n    t\n}\n", ["fn purr"]),
        ("rust", "impl Cat {\n    pub fn age(&self) -> u8 {\n        1\n    }\n}\n", ["impl Cat", "pub fn age"]),
        ("c", "int main(int argc)\n{\n    if (argc > 1) {\n        return 1;\n    }\n    return 0;\n}\n", ["int main"]),
        ("ruby", "class Cat\n  def purr\n    1\n  end\nend\n", ["class Cat", "def purr"]),
        ("python", "def old():\n    print 'two'\n\ndef other():\n    pass\n", ["def old", "def other"]),
    ],
)
def test_definitions_of_other_languages(language, text, names):
    def every(blocks):
        for block in blocks:
            yield from [block.name] * (block.kind == "definition")
            yield from every(block.inside)

    given = list(every(blocks_of(text, f"code:{language}")))
    assert [name[: len(short)] for name, short in zip(given, names, strict=True)] == names, given


def test_a_raw_string_does_not_end_a_function():
    text = "func a() {\n\tsay(`\nb\n}\nc`)\n}\n\nfunc d() {\n\t// it`s\n}\n\nfunc e() {\n\tsay()\n}\n"
    blocks = blocks_of(text, "code:go")
    assert [text[block.start : block.end].split("(")[0] for block in blocks] == ["func a", "func d", "func e"]


def test_what_stands_above():
    assert above("Trees", ("Cherries", "Pruning"), "Words") == "Trees › Cherries › Pruning"
    assert above("Cherries", ("Cherries", "Pruning"), "## Pruning\n\nWords") == "Cherries"
    assert above(None, (), "Words") == above(None, ("A",), "# A\nb") == ""


def test_blanks_have_no_passages():
    assert split(string.whitespace, "text", PassageOptions(), count) == []


def test_threads_that_cut_their_first_document_share_a_parser_that_is_ready():
    for inline in (True, False):
        _parser.cache_clear()
        parser = _parser(inline=inline)
        rules = (parser.core, parser.block, *([parser.inline] if inline else []))
        assert all(each.ruler.__cache__ for each in rules), "else a thread could see half of the rules"


def test_threads_leave_the_filters_of_warnings_as_they_were():
    text = "import re\n\n\ndef digits():\n    return re.compile('\\d+')\n\n\n" * 30
    before, interval = list(warnings.filters), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _: len(blocks_of(text, "code:python")), range(400)))
    finally:
        sys.setswitchinterval(interval)
    assert len(set(found)) == 1
    assert warnings.filters == before
