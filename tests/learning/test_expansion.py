"""Questions as words of their documents."""

from __future__ import annotations

from palmette import Document, FakeEncoder, Index, RetrievalData, SpaceModel
from palmette.learning.expansion import add_questions

CORPUS = [
    Document("a", "Cut the branches in late winter.", {"year": 2020}, {"title": "Apples"}),
    Document("b", "Bake for forty minutes."),
    Document("c", "Feed twice a day."),
]
QUERIES = {"q1": "when do I prune?", "q2": "pruning season", "q3": "sourdough oven time", "q4": "nothing"}
QRELS = {"train": {"q1": {"a": 1}, "q2": {"a": 2}, "q3": {"b": 1, "c": 0}}, "test": {"q4": {"c": 1}}}
DATA = RetrievalData("garden", CORPUS, QUERIES, QRELS)


def test_a_question_is_found_by_the_words_of_another() -> None:
    documents = add_questions(DATA)
    assert [document.fields for document in documents] == [
        {"title": "Apples", "questions": "when do I prune?\npruning season"},
        {"questions": "sourdough oven time"},
        {},
    ]
    assert [(one.key, one.text, one.metadata) for one in documents] == [(o.key, o.text, o.metadata) for o in CORPUS]
    model = SpaceModel.untrained(FakeEncoder(32))
    with Index.build(documents, model, progress=False) as index, Index.build(CORPUS, model, progress=False) as plain:
        question = "time for a sourdough in the oven"
        (hit,) = index.search(question, k=1, lexical=1.0, sentences=False)
        assert (hit.id, hit.document.text) == ("b", "Bake for forty minutes.")
        assert "sourdough" in str(hit.explain())
        assert all("sourdough" not in str(other.explain()) for other in plain.search(question, k=3, lexical=1.0))
