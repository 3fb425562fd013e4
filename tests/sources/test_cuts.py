"""What belongs together stays in a passage: keys and values, records, cells, rows, announcements, anchors."""

import json
import textwrap

import pytest

from palmette.sources.passages import PassageOptions, split

WORDS = "Some words that say a thing, and say it well."


def count(texts):
    return [len(text.split()) for text in texts]


def passages(text, kind, tokens):
    return [
        (text[one.start : one.end], one.headings) for one in split(text, kind, PassageOptions(tokens=tokens), count)
    ]


def stays_whole(block, text, kind, tokens):
    """Tell whether a part of a text is in one passage."""
    assert block in text
    return any(block in passage for passage, _ in passages(text, kind, tokens))


def test_a_key_stays_with_its_values_and_a_passage_of_values_is_under_their_keys():
    jobs = {
        f"job{n}": {"image": f"image:{n}", "steps": [{"run": f"make {n}{m} and test it"} for m in range(3)]}
        for n in range(9)
    }
    yaml = "on: push\njobs:\n" + "".join(
        f"  # remark {name}\n  {name}:\n    image: {job['image']}\n    steps:\n"
        + "".join(f"    - run: {step['run']}\n" for step in job["steps"])
        for name, job in jobs.items()
    )
    for text, start in ((json.dumps({"on": "push", "jobs": jobs}, indent=2), '"job'), (yaml, "# remark")):
        pieces = passages(text, "text:config", 60)
        assert all(piece.lstrip().startswith(start) for piece, _ in pieces[1:])
        assert {headings[:1] for _, headings in pieces[1:]} == {("jobs",)}
    inner = passages(yaml, "text:config", 12)
    assert all(not piece.rstrip().endswith(":") for piece, _ in inner), "a key is not parted from its first value"
    assert ("jobs", "job4") in {headings[:2] for _, headings in inner}


def test_sections_of_configuration_are_headings_with_the_remarks_right_above_them():
    sections = [
        f"# Remark {n}\n[tool.part{n}]\nname = {n}\n\n# about\n# values\nvalues = [\n  1, 2,\n  3,\n]\n"
        for n in range(6)
    ]
    text = "\n".join(sections)
    pieces = passages(text, "text:config", 22)
    assert [piece.splitlines()[0] for piece, _ in pieces] == [f"# Remark {n}" for n in range(6)]
    assert [headings for _, headings in pieces] == [(f"tool.part{n}",) for n in range(6)]
    documents = "---\n".join(f"kind: K{n}\nspec:\n  a: one two three\n  b: four five six\n" for n in range(5))
    assert [piece.split()[-11:-9] for piece, _ in passages(documents, "text:config", 14)][1] == ["kind:", "K1"]


TRACE = """2025-03-01 08:00:06,753 ERROR [api] request failed
Traceback (most recent call last):
  File "a.py", line 3, in f
    return int("x")

ValueError: invalid literal

The above exception was the direct cause of the following exception:

RuntimeError: not booked
"""


def test_a_record_of_a_log_stays_with_the_lines_that_it_goes_on_with():
    lines = [f"2025-03-01 08:00:{n:02},003 INFO [api] request {n} was answered in {n} ms\n" for n in range(40)]
    for at in range(5, 20):
        text = "".join([*lines[:at], TRACE, *lines[at:]])
        assert stays_whole(TRACE.strip(), text, "text:log", 60)
        assert all(piece.startswith("2025") for piece, _ in passages(text, "text:log", 60))


def test_a_log_without_times_has_banners_as_headings():
    text = "".join(f"______ test_{n} ______\n\n    def f():\n        pass\n\nE   wrong\n" for n in range(3))
    pieces = passages("===== FAILURES =====\n" + text, "text:log", 12)
    assert [headings for _, headings in pieces] == [("FAILURES",), ("FAILURES", "test_1"), ("FAILURES", "test_2")]


ASCIIDOC = """\
= Title
:toc:

{words}

[[install]]
== Install it

.Listing
[source,java]
----
class A {{

== no title
}} // <1>
----
<1> It ends.

{words}

* one
** inner one
+
----
x

y
----
* two

[NOTE]
====
Take care.

Always.
====

Term:: What it is.
"""


def test_asciidoc():
    text = ASCIIDOC.format(words=" ".join([WORDS] * 2))
    for tokens in range(32, 90, 4):
        assert {headings[:1] for _, headings in passages(text, "text:asciidoc", tokens)} == {("Title",)}
        for first, last in (
            (".Listing", "It ends."),
            ("* one", "y\n----"),
            ("[NOTE]", "Always.\n===="),
            ("[[", "Install it"),
        ):
            block = text[text.index(first) : text.index(last) + len(last)]
            assert stays_whole(block, text, "text:asciidoc", tokens), (first, tokens)
    table = (
        '[cols="1,1"]\n|===\n|A |B\n\n' + "\n\n".join(f"|cell {n}\n|what cell {n} says" for n in range(12)) + "\n|===\n"
    )
    pieces = passages(f"= T\n\n{WORDS}\n\n{table}", "text:asciidoc", 60)
    assert all(piece.startswith("|cell") for piece, _ in pieces[1:])
    assert len(pieces) > 2


CONTAINED = {
    "details": "<details>\n<summary>More</summary>\n\nOne two.\n\n- three\n\n</details>",
    "note": ":::note[Title]\n\nOne two.\n\nThree four.\n\n:::",
    "slashes": "/// tip\n\nOne two.\n\nThree four.\n\n///",
    "tabs": "<Tabs>\n<TabItem>\n\n```sh\na\n```\n\n</TabItem>\n<TabItem>\n\nb\n\n</TabItem>\n</Tabs>",
    "shortcode": "{{% note %}}\nOne two.\n\n```sh\na\n```\n\n{{% /note %}}",
    "expression": "{\n\n<Box>\n  words\n</Box>\n\n}",
}


@pytest.mark.parametrize("name", CONTAINED)
def test_containers_stay_whole(name):
    for before in range(1, 7):
        text = "\n\n".join(["# Title", *[WORDS] * before, CONTAINED[name], *[WORDS] * 4])
        for tokens in range(24, 60, 4):
            assert stays_whole(CONTAINED[name], text, "mdx", tokens), (tokens, before)


def test_an_element_of_many_lines_is_cut_between_its_entries():
    rows = "".join(f'\t\t{{\n\t\t\tname: "prop{n}",\n\t\t\ttype: "string",\n\t\t}},\n' for n in range(12))
    text = f"import Table from 'table'\n\n# Title\n\n<Table\n\tdata={{[\n{rows}\t]}}\n/>\n"
    pieces = passages(text, "mdx", 30)
    assert len(pieces) > 2
    assert all(piece.lstrip().startswith("{") for piece, _ in pieces[1:])
    assert pieces[0][1] == ("Title",), "modules are under what follows"


def test_the_head_of_a_table_and_what_announces_it_stay_with_its_first_row():
    for size in range(1, 13):
        rows = [f"| {number} | a cell with words |" for number in range(size)]
        text = "\n".join([f"# Head\n\n{WORDS}\n\nThe values are:\n", "| a | b |", "|---|---|", *rows])
        pieces = [piece for piece, _ in passages(text, "markdown", 45)]
        assert all(not piece.endswith((":", "|---|---|")) for piece in pieces), size
    long = "| a | b |\n|---|---|\n| x | " + " ".join(["cell"] * 30) + " |\n| y | z |\n"
    assert stays_whole(long.splitlines()[2], f"{WORDS}\n\n{long}", "markdown", 40), "a row that fits by itself"


def test_what_goes_on_stays_with_what_it_goes_on_with():
    cells = "```python\nvalue = 1\n```\n\n```python\nvalue + 1\n```"
    goes_on = "Open this address:\n\n```\nhttp://a\n```\n\n…and read it."
    for block in (cells, goes_on, "The next figure shows it.\n\n![](figure.png)"):
        for before in range(1, 6):
            text = "\n\n".join(["# Title", *[WORDS] * before, block, *[WORDS] * 4])
            assert stays_whole(block, text, "markdown", 32)
    items = "\n".join(f"- item {n} of the list" for n in range(9))
    assert all(not piece.endswith(":") for piece, _ in passages(f"{WORDS} {WORDS} These:\n\n{items}", "markdown", 58))


def test_a_long_fence_is_cut_between_definitions_and_a_long_paragraph_between_sentences():
    code = "".join(f"def f{n}(a):\n    b = a + {n}\n\n    return b * {n}\n" for n in range(9))
    pieces = [piece for piece, _ in passages(f"# A\n\n```python\n{code}```\n", "markdown", 40)]
    assert len(pieces) > 2
    assert all(piece.startswith("def f") for piece in pieces[1:])
    lines = textwrap.fill(" ".join(f"This is the sentence of number {n}, which goes on." for n in range(30)), 53)
    assert all(piece.endswith(".") for piece, _ in passages(lines.replace("on. This", "on.\nThis"), "text", 40))
