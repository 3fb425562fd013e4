"""Long files as several documents."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palmette.data import iter_documents
from palmette.data.documents import WORDS
from palmette.data.documents import passages as pieces


def words(count: int, word: str = "word") -> str:
    return " ".join([f"{word}{n}" for n in range(count - 1)] + [f"{word}."])


def test_a_short_file_stays_as_it_is() -> None:
    text = "# Title\n\none  two\n\n## More\n\n\nthree\n"
    assert pieces(text) == [text]


def test_a_long_one_is_cut_at_its_headings_which_keep_the_title() -> None:
    text = f"# Bees\n\nIntro.\n\n## Food\n{words(100, 'food')}\n\n## Hives\n{words(100, 'hive')}\n"
    first, second = pieces(text)
    assert first.startswith("# Bees\n\nIntro.\n\n## Bees: Food\nfood0 ")
    assert second.startswith("## Bees: Hives\nhive0 ")


def test_neighbours_stay_together_while_they_are_short() -> None:
    sections = [f"## S{n}\n{words(50)}" for n in range(6)]
    assert [piece.count("## ") for piece in pieces("\n\n".join(["Preface.", *sections]))] == [3, 3]


def test_a_long_section_is_cut_between_paragraphs_and_they_between_sentences() -> None:
    paragraphs = [words(100, "a"), " ".join(words(30, f"s{n}") for n in range(10))]
    cut = pieces("## Long\n\n" + "\n\n".join(paragraphs))
    assert all(piece.startswith("## Long\n\n") for piece in cut)
    assert all(len(piece.split()) <= WORDS + 2 for piece in cut)
    assert all(piece.endswith(".") for piece in cut), "between sentences"
    assert cut[0] == f"## Long\n\n{paragraphs[0]}"


def test_a_hash_in_code_is_no_heading() -> None:
    code = "```sh\n# copy it\ncp a b\n```"
    text = f"# Backup\n\n{words(100)}\n\n{code}\n\n## Restore\n{words(100)}"
    first, second = pieces(text)
    assert code in first
    assert second.startswith("## Backup: Restore")


def test_words_without_an_end_are_cut_all_the_same() -> None:
    assert [len(piece.split()) for piece in pieces("word " * 400)] == [WORDS, WORDS, 40]
    heading = f"# {words(200)}"
    assert pieces(heading) == [heading]


@given(st.text(st.sampled_from("#ab. \n`"), max_size=3000), st.integers(2, 20))
def test_no_word_is_lost(text: str, limit: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("palmette.data.documents.WORDS", limit)
        kept = iter(re.findall("[ab]+", " ".join(pieces(text))))
    assert all(word in kept for word in re.findall("[ab]+", text)), "in order; headings may come again"


def test_pieces_are_documents_of_their_file(tmp_path: Path) -> None:
    (tmp_path / "long.md").write_text(f"# Bees\n{words(150)}\n## Hives\n{words(150)}")
    (tmp_path / "short.md").write_text("# Wool")
    found = list(iter_documents(tmp_path))
    assert [document.id for document in found] == ["long.md#1", "long.md#2", "short.md"]
    assert {document.metadata["source"] for document in found} == {"long.md", "short.md"}
    assert [document.id for document in iter_documents(tmp_path / "long.md")] == ["long.md#1", "long.md#2"]
