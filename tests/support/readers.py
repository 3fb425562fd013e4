"""Small readers: questions on animals and houses, learned in a moment."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from palmette import FakeEncoder
from palmette.reader import Reader
from support import tiny
from support.tiny_encoder import save_tiny_encoder


def records(split: str | None = None) -> list[dict[str, Any]]:
    """Where every animal of :func:`support.tiny.documents` lives: its house is the answer."""
    told = {} if split is None else {"split": split}
    return [
        {"question": question, "context": text, "answers": [f"house {number}"], **told}
        for number, (question, text) in enumerate(tiny.pairs())
    ]


def texts() -> list[str]:
    """The same documents with a second sentence, which answers nothing."""
    return [f"{one.text} Nobody knows who painted the wall." for one in tiny.documents()]


def pairs() -> list[tuple[str, str]]:
    """Questions and the documents that answer them, no answers marked."""
    return [(record["question"], text) for record, text in zip(records(), texts(), strict=True)]


@cache
def sentence_reader() -> Reader:
    """Over a fake encoder."""
    return Reader.fit(pairs(), encoder=FakeEncoder(64), unit="sentence", steps=200, progress=False)


def span_options() -> dict[str, Any]:
    """What a tiny encoder has room for."""
    return {"max_length": 40, "overlap": 6, "max_answer": 4, "max_question": 16, "progress": False}


@cache
def encoder() -> Path:
    """Such an encoder, saved once."""
    return tiny_encoder(Path(mkdtemp(prefix="tiny-reader-")) / "model")


def tiny_encoder(folder: Path) -> Path:
    """An encoder that knows the words of the questions and passages."""
    words = sorted({word for one in tiny.documents() for word in one.text.lower().replace(".", " ").split()})
    known = tuple(dict.fromkeys([*words, "where", "does", "live", "?", "."]))
    return save_tiny_encoder(folder, words=known, width=32)
