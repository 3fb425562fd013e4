"""Answers compared as SQuAD compares them."""

from __future__ import annotations

import pytest

from palmette.answers import answer_accuracy, answer_rank, exact_match, f1, holds_answer, normalise
from palmette.errors import InputError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Cat, a HAT!", "cat hat"),
        ("U.S.A.", "usa"),
        ("an-other theatre", "another theatre"),  # punctuation goes first, articles only as words
        ("the", ""),
        ("A−B", "−b"),  # a Unicode minus stays, and parts the article from its neighbour
        ("", ""),
    ],
)
def test_normalise(text: str, expected: str) -> None:
    assert normalise(text) == expected


def test_the_best_accepted_answer_counts() -> None:
    assert exact_match("The Eiffel Tower.", ["tower", "eiffel tower"]) == 1.0
    assert exact_match("Eiffel", ["tower", "eiffel tower"]) == 0.0
    assert f1("Eiffel", ["tower", "eiffel tower"]) == pytest.approx(2 / 3)
    assert f1("to be or to be", ["to be"]) == pytest.approx(
        2 * 2 / 7
    )  # a word counts as often as both have it


def test_no_answer_is_right_only_where_there_is_none() -> None:
    assert exact_match("", []) == f1("", []) == 1.0
    assert exact_match("Paris", []) == f1("Paris", []) == 0.0
    assert exact_match("", ["Paris"]) == f1("", ["Paris"]) == 0.0
    assert exact_match("", ["the"]) == 1.0  # nothing is left of it


def test_a_text_holds_an_answer_as_whole_words() -> None:
    assert holds_answer("It was the (North) Sea.", ["north sea"])
    assert not holds_answer("Northern seas", ["north", "sea"])
    assert not holds_answer("anything", ["", "the"])


def test_accuracy_at_n_counts_the_first_text_with_an_answer() -> None:
    ranks = [answer_rank(["no", "Paris it is", "Paris"], ["paris"]), answer_rank(["no"], ["paris"])]
    assert ranks == [2, None]
    assert answer_accuracy(ranks, [1, 2, 9]) == {"accuracy@1": 0.0, "accuracy@2": 0.5, "accuracy@9": 0.5}
    assert answer_accuracy([], [1]) == {"accuracy@1": 0.0}


@pytest.mark.parametrize("compare", [exact_match, f1, holds_answer])
def test_a_text_in_place_of_a_list_is_not_taken_letter_by_letter(compare) -> None:
    for wrong in ("cat", b"cat", None):
        with pytest.raises(InputError, match="must be a list of str, got .*: put it in a list"):
            compare("a cat", wrong)
    for said, accepted in ((None, ["cat"]), ("cat", [7])):
        with pytest.raises(InputError, match="must be str, got"):
            compare(said, accepted)


def test_texts_to_look_through_are_a_list_too() -> None:
    with pytest.raises(InputError, match="texts must be a list"):
        answer_rank("a cat", ["cat"])
    with pytest.raises(InputError, match="answers must be a list"):
        answer_rank(["a cat"], "cat")
