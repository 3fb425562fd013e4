"""What is marked in a hit."""

import pickle

from palmette import Document, FakeEncoder, Index, SpaceModel
from palmette.index.marks import WORDS_MARKED, highlight

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


def test_options_and_names_of_code_are_wholes():
    text = "Options of it.\n\n    --max-size N     stop early\n    --max-size-all   never stop\n\nIt is fast."
    found = highlight(text, "what does --max-size-all do?", (0, 20), [], 1)
    assert text[slice(*found.sentence)].strip() == "--max-size-all   never stop"


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
