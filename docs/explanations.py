"""Writes the examples of docs/explain.md, first hits in the standard library: `python docs/explanations.py`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from palmette import Document, Index, sample_data

DOCS = Path(__file__).parent
PAGE = DOCS / "explain.md"
BEGIN = "<!-- written by docs/explanations.py -->\n"


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
    library = sample_data()
    asked = [library.queries[query] for query in list(library.qrels["test"])[::28][:3]]
    found = told("The standard library", library.corpus, asked)
    head = PAGE.read_text("utf-8").partition(BEGIN)[0]
    PAGE.write_text(head + BEGIN + found, encoding="utf-8")


if __name__ == "__main__":
    main()
