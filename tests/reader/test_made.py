"""Questions with a gap, made from documents."""

from __future__ import annotations

import pytest

from palmette import Document
from palmette.errors import InputError
from palmette.reader import Asked, ReadingData, load_reading
from palmette.reader.made import make_questions, with_gaps
from support import tiny

TEXT = (
    "The river Rhine begins in the Swiss canton of Graubünden in 1230 metres. "
    "About 2,500 ships and 7.5 million people pass Lake Constance each year. Short one."
)


def test_numbers_and_names_are_asked_for() -> None:
    made = [asked for seed in range(30) for asked in make_questions([Document("d", TEXT)], seed)]
    answers = {answer for asked in made for answer in asked.answers or ()}
    assert answers <= {"Rhine", "Swiss", "Graubünden", "1230", "2,500", "7.5 million", "Lake Constance"}
    assert len(answers) >= 5


def test_the_answer_stands_in_its_place_and_not_in_the_question() -> None:
    documents = tiny.documents()
    made = make_questions(documents)
    assert len(made) == len(documents)  # one number each
    for asked in made:
        (row,), (answer,) = asked.passages, asked.answers or ()
        ((start, end),) = asked.spans(row, documents[row].text)
        assert documents[row].text[start:end] == answer == str(documents[row].metadata["house"])
        assert answer not in asked.question.split()
        assert asked.question.endswith("?")
    assert made == make_questions(documents)
    assert made != make_questions(documents, seed=1)


def test_known_answers_are_kept_and_gaps_made_where_there_are_none() -> None:
    data = load_reading([one.text for one in tiny.documents()])
    made = with_gaps(data)
    assert not made.labelled
    assert all(asked.answers for asked in made.split("train"))
    assert made.split("dev")
    mixed = ReadingData("m", data.passages, {"train": [Asked("a?", ("x",), (0,)), Asked("b?", None, (1,))]})
    assert [asked.question for asked in with_gaps(mixed).split("train")] == ["a?"]
    with pytest.raises(InputError, match="no numbers or names"):
        with_gaps(ReadingData("m", [Document("d", "nothing here")], {"train": [Asked("a?", None, (0,))]}))
