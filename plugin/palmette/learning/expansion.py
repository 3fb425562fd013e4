"""Document expansion: questions about a passage become words in which it is found (as in doc2query)."""

from __future__ import annotations

from dataclasses import replace

from palmette.config import check_choice, check_kind
from palmette.data import RetrievalData
from palmette.errors import InputError
from palmette.types import Document

FIELD = "questions"
"""Field of a document that holds its questions."""


def add_questions(data: RetrievalData, split: str = "train") -> list[Document]:
    """Return the documents of judged data, each with the questions about it as a field.

    An index looks for words in fields too, so a passage is found by the words of its questions, which often are the
    words of the next person who asks. Vectors, sentences and what hits show stay those of the text. Train on the data
    itself, not on these documents: among their own words, questions are found too easily.

    Args:
        data: Documents and questions, such as :func:`palmette.write_questions` returns.
        split: Whose questions are added; those of a test split would be found by their own words.
    """
    check_kind("data", data, RetrievalData, "judged data, such as palmette.load_data gives")
    if not data.qrels:
        raise InputError(f"{data.name!r} has no judged questions: there is nothing to add to its documents")
    check_choice("split", split, tuple(data.qrels))
    questions: dict[str, list[str]] = {}
    for query, grades in data.qrels[split].items():
        for key, grade in grades.items():
            if grade > 0:
                questions.setdefault(key, []).append(data.queries[query])
    return [
        replace(document, fields={**document.fields, FIELD: "\n".join(questions[document.key])})
        if document.key in questions
        else document
        for document in data.corpus
    ]
