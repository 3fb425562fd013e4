"""Questions made from documents alone: a sentence with a gap, and what stood there is the answer.

Numbers and names are what is asked for. A part of the sentence's other words is left out, and the rest is a question of
some words around the gap, so that a reader cannot just compare letter by letter.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from palmette.data.synthetic import sentences
from palmette.errors import InputError
from palmette.reader.data import Asked, ReadingData
from palmette.types import Document

__all__ = ["make_questions", "with_gaps"]

EACH = 3
"""Questions of one document at most."""
AROUND = 10
"""Words kept on either side of the gap."""
DROPPED = 0.2
"""Share of those that are left out."""

_NUMBER = re.compile(r"(?<![\w.,])\d[\d,.]*(?<![.,])(?: (?:percent|million|billion|thousand))?(?!\w)")
_YEAR = re.compile(r"[12]\d{3}")
_NAME = re.compile(r"(?<=[a-z,;] )[A-Z][\w'’-]*(?: (?:(?:of|the|and|de|von) )?[A-Z][\w'’-]*)*")


def make_questions(documents: Sequence[Document], seed: int = 0) -> list[Asked]:
    """Some questions on each document that has numbers or names; the draws depend on the seed and its id alone."""
    made = []
    for row, document in enumerate(documents):
        draw = random.Random(f"{seed}:{document.key}")
        text = document.content
        gaps = [(start, end, span) for span in sentences(text) for start, end in _gaps(text, span)]
        for start, end, (first, last) in draw.sample(gaps, min(EACH, len(gaps))):
            question = _question(text[first:start], text[start:end], text[end:last], draw)
            answer = text[start:end]
            made.append(Asked(question, (answer,), (row,), {(answer, row): (start,)}))
    return made


def with_gaps(data: ReadingData, seed: int = 0) -> ReadingData:
    """The same data where answers are known, else its passages with self-made questions."""
    known = {name: [one for one in asked if one.answers is not None] for name, asked in data.splits.items()}
    if known.get("train"):
        return replace(data, splits={name: asked for name, asked in known.items() if asked})
    made = make_questions(data.passages, seed)
    if not made:
        raise InputError(
            f"{data.name}: no answers are given, and none could be made of {len(data.passages)} passages, which have "
            "no numbers or names: give questions with answers, or unit='sentence'"
        )
    return ReadingData(data.name, data.passages, {"train": made}, labelled=False).with_dev(seed=seed)


def _gaps(text: str, span: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """The numbers and names of a sentence that has words enough around them."""
    if len(text[span[0] : span[1]].split()) < 5:
        return
    for pattern in (_NUMBER, _NAME):
        yield from (found.span() for found in pattern.finditer(text, *span))


def _question(before: str, answer: str, after: str, draw: random.Random) -> str:
    """The words around, with a question word in the gap."""

    def thinned(words: Sequence[str]) -> list[str]:
        return [word for word in words if draw.random() >= DROPPED]

    if _YEAR.fullmatch(answer):
        asked = draw.choice(("when", "what year"))
    elif answer[0].isdigit():
        asked = draw.choice(("how many", "how much", "what"))
    else:
        asked = draw.choice(("who", "what", "which", "where"))
    left, right = before.split()[-AROUND:], after.split()[:AROUND]
    return " ".join([*thinned(left), asked, *thinned(right)]).strip(" .,;:!?") + "?"
