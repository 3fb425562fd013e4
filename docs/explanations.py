"""Writes the examples of docs/explain.md, first hits in three collections: `python docs/explanations.py`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from pydoc_data.topics import topics

from palmette import Document, Index, load_data, sample_data

DOCS = Path(__file__).parent
PAGE = DOCS / "explain.md"
PIECE = 900
"""Characters from which on a topic's paragraphs begin another document."""
BEGIN = "<!-- written by docs/explanations.py -->\n"
TOPICS = "assignment async calls class comparisons context-managers dynamic-features exceptions for function naming"
TOPICS += " numeric-types operator-summary return sequence-types truth try with yield"
"""Pages of Python's language reference."""
MANUAL = """How do I make a class iterable?
What happens when an exception is not caught?
Can a function have default values for its arguments?
How are names looked up in nested functions?
What is the difference between is and ==?
How do I unpack a list into variables?
Which objects count as false?
How can I define what the plus operator does?
Is there a way to run cleanup code whatever happens?
What does async with need?"""
OURS = """How do I delete documents from an index?
Can two processes write at the same time?
How many bytes does a sentence take?
What if my encoder is not on the Hub?
How do I keep tenants apart?
Does training need a GPU?
Which retriever is good for products with fields?
How do I publish a model?
Why is the score a probability?
What is the best recipe for apple pie?"""


def manual() -> list[Document]:
    """Sections of some pages, as `help()` shows them."""
    documents = []
    for name in TOPICS.split():
        piece: list[str] = []
        for paragraph in (*topics[name].split("\n\n"), None):
            if paragraph is None or sum(map(len, piece)) > PIECE:
                documents.append(Document(f"{name}#{len(documents)}", "\n\n".join(piece)))
                piece = []
            piece += [] if paragraph is None else [paragraph.strip()]
    return [document for document in documents if document.text.strip()]


def told(title: str, documents: Sequence[Document], questions: Sequence[str]) -> str:
    """Reasons of the first hit of each question."""
    with Index.build(documents) as index:
        lines = [f"\n## {title}, {len(documents):,} documents\n"]
        for question in questions:
            hit = index.search(question, 1)[0]
            lines.append(f"**{question}** `{hit.id}`, {hit.score:.0%}\n: {escaped(hit.explain().text)}\n")
        return "\n".join(lines)


def escaped(text: str) -> str:
    """Text without Markdown's marks."""
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>|#$~" else letter for letter in text)


def main() -> None:
    """Write the page."""
    library = sample_data("small")
    asked = [library.queries[query] for query in list(library.qrels["test"])[::14][:10]]
    guide = [page.name for page in DOCS.glob("*.md") if page.name != PAGE.name]
    pages = [document for document in load_data(DOCS).corpus if document.key.partition("#")[0] in guide]
    parts = [told("The standard library", library.corpus, asked)]
    parts.append(told("Some of Python's language reference", manual(), MANUAL.splitlines()))
    parts.append(told("The guide on these pages", pages, OURS.splitlines()))
    head = PAGE.read_text("utf-8").partition(BEGIN)[0]
    PAGE.write_text(head + BEGIN + "".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
