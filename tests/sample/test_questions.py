"""The handwritten questions and their answers."""

import hashlib
import re

from palmette.sample import load_questions

NEWER = {"pathlib.Path.walk", "pdb.set_trace", "mimetypes.guess_file_type", "warnings.deprecated"}
"""Answers that Python 3.11 does not have."""


def test_every_answer_is_in_the_catalogue(full):
    missing = {name for question in load_questions() for name in question.gold if name not in full}
    assert missing <= NEWER


def test_every_question_has_an_answer_on_every_python():
    assert not [question for question in load_questions() if set(question.gold) <= NEWER]


def test_enough_and_wide(full):
    questions = load_questions()
    assert len(questions) >= 170
    assert sum(len(question.gold) > 1 for question in questions) >= 15
    modules = {full[name].metadata["module"] for q in questions for name in q.gold if name in full}
    assert len(modules) >= 100


def test_well_formed():
    questions = load_questions()
    assert [question.id for question in questions] == [f"howto-{n:03d}" for n in range(1, len(questions) + 1)]
    assert len({question.question for question in questions}) == len(questions)
    for question in questions:
        assert question.question == question.question.strip() != ""
        assert 1 <= len(question.gold) == len(set(question.gold)) <= 5


def test_halves_by_hash():
    for question in load_questions():
        odd = hashlib.sha256(question.id.encode()).digest()[-1] % 2
        assert question.split == ("test" if odd else "dev")
    share = sum(question.split == "dev" for question in load_questions()) / len(load_questions())
    assert 0.4 < share < 0.6


def test_few_questions_give_the_name_away():
    given = 0
    for question in load_questions():
        words = set(re.findall(r"\w+", question.question.lower()))
        given += any(name.rpartition(".")[2].lower() in words for name in question.gold)
    assert given / len(load_questions()) < 0.15
