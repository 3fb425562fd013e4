"""What is marked in a hit."""

import pickle

import pytest

from palmette import Document, FakeEncoder, Index, SpaceModel
from palmette.index.marks import WORDS_MARKED, highlight
from palmette.types import table_heads

ROWS = [f"| LH-{number} | handle, model {number % 7} | {number % 90}.50 |" for number in range(1001, 1021)]
TABLE = "\n".join(["Prices of handles.", "", "| article | name | price |", "|---|---|---|", *ROWS, ""])


def words_in(text, *words):
    return [(text.index(word), text.index(word) + len(word)) for word in words]


def test_the_row_of_an_identifier_is_marked():
    header = TABLE.index("| article"), TABLE.index("\n| LH-1002")
    bold = [*words_in(TABLE, "price"), *((TABLE.index(row) + 2, TABLE.index(row) + 9) for row in ROWS)]
    found = highlight(TABLE, "price of LH-1004", header, bold, 11)
    assert TABLE[slice(*found.sentence)] == ROWS[3]
    assert found.line == 11 + 4 + 3
    assert [TABLE[a:b] for a, b in found.words] == ["LH-1004"]
    assert len(TABLE[slice(*found.around)].split()) <= WORDS_MARKED
    without = highlight(TABLE, "what is it?", header, [], 1)
    assert TABLE[slice(*without.sentence)] == ROWS[0], "a header wins nothing"


OPTIONS = "Options of it.\n\n    --max-size N     stop early\n    --max-size-all   never stop\n\nIt is fast."
COMMAND = "The cache grows with every run. To clear it, run this:\n\n```\ntool clean\n```\n\nIt is empty afterwards."
BLOCKS = "# People\nNobody left.\n\n# Next\nMove the archive out of the cellar."
CODE = 'def read(path):\n    """Read a file.\n\n    A path that is missing raises."""\n    return path.read_text()\n'
WHOLES = {
    "an option's name": (OPTIONS, "what does --max-size-all do?", (0, 20), [], "--max-size-all   never stop"),
    "what a sentence announces": (COMMAND, "clear the cache", (32, 54), [], COMMAND[32:74]),
    "a row without its header": ("\n".join(ROWS[:3]), "what is LH 1001?", (0, 999), ["1001"], ROWS[0]),
    "a short block with the words": (BLOCKS, "where is the archive?", (0, 999), ["archive"], BLOCKS[23:]),
    "code across blank lines": (CODE, "what raises if it is missing", (0, 999), ["missing", "raises"], CODE.strip()),
}


@pytest.mark.parametrize("name", WHOLES)
def test_what_belongs_together_is_marked_whole(name):
    text, question, best, words, marked = WHOLES[name]
    found = highlight(text, question, (best[0], min(best[1], len(text))), words_in(text, *words), 1)
    assert text[slice(*found.sentence)].strip() == marked
    assert found.line == 1 + text[: found.sentence[0]].count("\n")
    assert found.around[0] <= found.sentence[0] < found.sentence[1] <= found.around[1]


def test_a_mark_has_what_it_announces_and_its_neighbours():
    text = "The cache grows with every run. To clear it, run this:\n\n```\ntool clean\n```\n\nIt is empty afterwards."
    start = text.index("To clear")
    found = highlight(text, "clear the cache", (start, text.index("\n")), [], 1)
    assert text[slice(*found.sentence)].endswith("tool clean\n```")
    assert found.around == (0, len(text))


def test_hits_carry_marks_and_keep_them():
    index = Index.build([Document("prices", TABLE)], SpaceModel.untrained(FakeEncoder()), progress=False)
    hit = index.search("price of LH-1004", k=1)[0]
    assert hit.document.content[slice(*hit.highlights.sentence)] == ROWS[3]
    assert hit.to_dict()["highlights"]["line"] == 8
    assert pickle.loads(pickle.dumps(hit)).highlights == hit.highlights


def test_rows_far_below_the_head_of_a_table_are_found_by_its_columns():
    parts = [f"| part {number} | {number * 7 % 90} | {number}C |" for number in range(60)]
    text = "\n".join(["# Stock", "", "## Kiel", "", "| part | on shelf | drawer |", "|---|---|---|", *parts, ""])
    other = Document("other", "We wrote to a Kiel drawer maker about part 55, and to others about nothing.")
    with Index.build([Document("stock", text), other], SpaceModel.untrained(FakeEncoder()), progress=False) as index:
        hits = index.search("drawer of part 55 in Kiel", 20, lexical=1.0)
        (holder,) = (hit for hit in hits if "| part 55 |" in hit.document.content)
        assert "drawer" not in holder.document.content
        assert holder.passage.last_line - holder.passage.first_line < 20
        words = {part.name for part in holder.explain().parts}
        assert {"word 'drawer'", "word 'kiel'"} <= words
        index.verify()


def test_heads_of_a_long_table_take_one_walk_over_its_rows():
    class Counted(str):
        met = 0

        def startswith(self, *args: object) -> bool:
            Counted.met += 1
            return super().startswith(*args)  # type: ignore[arg-type]

    rows = ["| part | shelf |", "|---|---|", *[f"| {number} | B{number} |" for number in range(3000)]]
    text = Counted("\n".join(["Before.", *rows, "", "After."]))
    starts = [0, *[text.index(rows[at]) for at in range(0, len(rows), 10)], text.index("After")]
    assert table_heads(text, starts) == ["", "", *["part | shelf"] * (len(starts) - 3), ""]
    assert Counted.met <= len(rows) + 4 * len(starts)
    # also where every passage begins inside a row
    inside = [text.index(rows[at]) + rows[at].rindex("|", 0, -1) for at in range(2, len(rows), 10)]
    Counted.met = 0
    assert table_heads(text, inside) == ["part | shelf"] * len(inside)
    assert Counted.met <= len(rows) + 4 * len(inside)


def test_a_table_in_one_line_is_not_repeated_in_each_of_its_passages():
    text = "| cell |" * 20_000
    heads = table_heads(text, range(8, len(text), 800))
    assert max(map(len, heads)) <= 1000
    assert table_heads("| a | b |\r\n|---|---|\r\n| 1 | 2 |", [22]) == ["a | b"]
    assert table_heads("| a | b |\r|---|---|\r| 1 | 2 |", [20]) == ["a | b"]
