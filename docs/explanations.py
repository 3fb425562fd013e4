"""Writes docs/explain.md, what hits say of themselves in three collections: `python docs/explanations.py`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from pydoc_data.topics import topics

from palmette import Document, Index, load_data, sample_data

DOCS = Path(__file__).parent
PAGE = DOCS / "explain.md"
PIECE = 900
"""Characters from which on a topic's paragraphs begin another document."""
HEAD = """# What hits say

`hit.explain()` says why a document was found: how close it is in meaning and which of its sentences is closest; which words it shares with the question,
in how many documents each stands, the rarest first; and what the method adds, such as a topic that both fall into, the field that matches, or the way up
a hierarchy. `hit.highlights` has the characters of that sentence and of these words.

```python
from palmette import Index

index = Index.build("docs.jsonl")
hit = index.search("quince jelly", k=1)[0]
print(f"{hit.score:.0%}", hit.explain())
places = hit.highlights
print([hit.document.text[start:end] for start, end in places.words], places.sentence)
```

`explain().parts` are log-odds that add up to those of the score: the *prior* of any document, the *document* and its *best sentence* by meaning, each
*word*, and *common words*, what questions of few or frequent words match by chance. `explain().method` has the method's own numbers.

Below are the first hits of ten questions in three collections, as `python docs/explanations.py` finds them with all-MiniLM-L6-v2 and nothing trained.
Wrong ones are among them: their reasons, and their probability, should tell.
"""
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
    """Sections of Python's language reference, as `help()` shows them."""
    documents = []
    for name, text in topics.items():
        piece: list[str] = []
        for paragraph in (*text.split("\n\n"), None):
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
    pages = [d for d in load_data(DOCS).corpus if not d.key.startswith("explain")]
    parts = [told("The standard library", library.corpus, asked)]
    parts.append(told("Python's language reference", manual(), MANUAL.splitlines()))
    parts.append(told("This documentation", pages, OURS.splitlines()))
    PAGE.write_text(HEAD + "".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
