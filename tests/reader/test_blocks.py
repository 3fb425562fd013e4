"""Answers that end where they should: with the code, list or table that a sentence announces."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palmette import Document, FakeEncoder, Index, Reader, SpaceModel
from palmette.reader.answer import Answer, Support, with_blocks
from palmette.reader.blocks import WORDS_AROUND_AN_ANSWER, complete, with_neighbours
from palmette.reader.rows import row_around
from palmette.reader.sentences import cut_sentences

CODE = "Build it. To build, run:\n\n```sh\nmake build\n\nmake test\n```\n\nThen rest.\n"
DEEP = "For example:\n\n````md\n```sh\ninner\n```\n````\n\nEnd."
LIST = "Three kinds exist:\n\n- red\n  and pink\n- blue\n\n- green\n\nThat is all."
TABLE = "The limits are:\n| what | limit |\n|---|---|\n| size | 3 |\nNothing else."
RST = """\
.. _debug:

Debug Mode
----------

.. py:data:: DEBUG
    :type: bool

    It shows a traceback in the browser. Enable it::

        tool --debug

        tool --debug --reload

    More on that is in another chapter.

Or in two lines:

.. code-block:: sh

    export DEBUG=1
    tool

.. _next:

Production
----------

Never enable it there.
"""
LONG = f"It has a queue. {'If there is no free slot, ' * 16}the flag is set, {'and all wait, ' * 16}it ends. So be it."


def answer(text: str, sentence: str) -> str:
    start = text.index(sentence)
    first, last = complete(text, start, start + len(sentence))
    return text[first:last]


@pytest.mark.parametrize(
    ("text", "sentence", "expected"),
    [
        (CODE, "To build, run:", "To build, run:\n\n```sh\nmake build\n\nmake test\n```"),
        (CODE, "Build it.", "Build it."),
        (CODE, "Then rest.", "Then rest."),
        (DEEP, "For example:", DEEP.removesuffix("\n\nEnd.")),
        (LIST, "Three kinds exist:", LIST.removesuffix("\n\nThat is all.")),
        (TABLE, "The limits are:", TABLE.removesuffix("\nNothing else.")),
        (RST, "Enable it::", RST[RST.index("Enable it") : RST.index("\n\n    More")]),
        (RST, "Or in two lines:", RST[RST.index("Or in") : RST.index("\n\n.. _next")]),
        (LONG, "the flag is set", LONG[16:-10]),
        ("It says:\n\nA paragraph.", "It says:", "It says:"),
        ("It ends:", "It ends:", "It ends:"),
        ("Open fence:\n\n```\nnever closed", "Open fence:", "Open fence:\n\n```\nnever closed"),
        ("Long:\n\n```\n" + "x\n" * 2000 + "```", "Long:", "Long:"),
    ],
    ids=lambda value: value[:12] if isinstance(value, str) else None,
)
def test_an_announced_block_comes_along(text: str, sentence: str, expected: str) -> None:
    assert answer(text, sentence) == expected


MANUAL = (
    "# Index\n\nIt has an option. The option `--flat` lists folders.\n\nUse it so:\n\n```sh\ntool --flat\n```\n\n"
    "A third block.\n\nA fourth.\n\n## Other\n\nAnother section.\n\n" + "word " * 90
)


@pytest.mark.parametrize(
    ("sentence", "first", "last"),
    [
        ("It has an option.", "It has", "--flat\n```"),  # the paragraph and two blocks after it
        ("The option `--flat` lists folders.", "It has an option.", "--flat\n```"),  # the sentence before it, too
        ("A third block.", "Use it so:", "A fourth."),  # two blocks before it, and none of the next section
        ("Another section.", "Another section.", "Another section."),
        ("word word word", "Another section.", "word word word"),  # a paragraph that is too long ends it
    ],
)
def test_an_answer_has_what_stands_around_it(sentence: str, first: str, last: str) -> None:
    start = MANUAL.index(sentence)
    begin, end = with_neighbours(MANUAL, start, start + len(sentence))
    assert MANUAL[begin:end].startswith(first)
    assert MANUAL[begin:end].endswith(last)
    assert len(MANUAL[begin:end].split()) <= WORDS_AROUND_AN_ANSWER


@pytest.mark.parametrize(
    ("question", "first", "last"),
    [("a traceback in the browser", "It shows", "    tool"), ("production, never enable it there", "Never", "there.")],
)
def test_titles_labels_and_directives_begin_and_end_no_answer(question: str, first: str, last: str) -> None:
    reader = Reader.untrained(FakeEncoder(64))
    for source in ({"source": "manual.rst"}, {}):
        found = reader.answer(question, [Document("a", RST, source)], threshold=0)
        assert found.text.startswith(first)
        assert found.text.endswith(last)
        assert found.sentence.startswith(first)


@settings(max_examples=100)
@given(st.text(st.sampled_from("a:\n `~-1.|=\t*"), max_size=60), st.data())
def test_an_answer_holds_its_sentence_and_stays_inside_the_text(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    first, last = data.draw(st.sampled_from([complete, with_neighbours]))(text, start, end)
    assert 0 <= first <= start <= end <= last <= len(text)


def test_a_reader_of_sentences_answers_with_the_block() -> None:
    document = Document("a", CODE)
    start = CODE.index("To build")
    support = Support(0, document, start, start + len("To build, run:"), 1.0, "To build, run:")
    whole = with_blocks(Answer("how?", "To build, run:", supports=(support,)))
    assert whole.text == whole.supports[0].text == CODE.strip()
    assert whole.sentence == "To build, run:"
    assert with_blocks(Answer("how?")) == Answer("how?")
    reader = Reader.untrained(FakeEncoder(64))
    found = reader.answer("what to run to build", ["To build, run:\n\n```sh\nmake build\n```"], threshold=0)
    assert "make build" in found.text


PRICES = "# Prices\n\nOur parts.\n\n| part | price | stock |\n|---|---:|---|\n" + "".join(
    f"| LH-{1000 + n} | {10 + n / 2:.2f} | {3 * n} |\n" for n in range(1, 16)
)


@pytest.mark.parametrize(
    ("question", "expected", "row"),
    [
        ("price of LH-1004", "LH-1004: price 12.00", "| LH-1004 | 12.00 | 12 |"),
        ("stock and price of LH-1010", "LH-1010: price 15.00, stock 30", "| LH-1010 | 15.00 | 30 |"),
        ("tell me about LH-1011", "LH-1011: price 15.50, stock 33", "| LH-1011 | 15.50 | 33 |"),
        ("what colour is AB-3", "AB-3: colour blue", "part: AB-3\nprice: 3.5\ncolour: blue"),
    ],
)
def test_a_row_answers_with_the_columns_that_the_question_names(
    tmp_path: Path, question: str, expected: str, row: str
) -> None:
    (tmp_path / "prices.md").write_text(PRICES)
    (tmp_path / "parts.csv").write_text("part,price,colour\nAB-2,2.5,red\nAB-3,3.5,blue\n")
    with Index.build(tmp_path, SpaceModel.untrained(FakeEncoder(256)), progress=False) as index:
        found = Reader.untrained(index.model.encoder).answer(question, index.search(question, 4), threshold=0)
    assert (found.text, found.supports[0].text) == (expected, row)


def test_the_head_of_a_table_answers_nothing_and_a_row_without_one_stays_as_it_is() -> None:
    texts = [PRICES[slice(*span)] for span in cut_sentences(PRICES)]
    assert not any("price | stock" in text for text in texts)
    rows = PRICES[PRICES.index("| LH-1004") :]
    assert row_around(rows, "LH-1004", 0, 5) is None
    assert row_around(PRICES, "LH-1004", 0, 5) is None
