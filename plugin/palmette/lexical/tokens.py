"""Texts as words to search by: folded and stemmed, with identifiers, numbers and scripts without blanks in mind."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache
from hashlib import blake2b
from typing import NamedTuple

from palmette.errors import ConfigError

__all__ = ["LANGUAGE", "Analyser", "Word", "analyser_of", "check_language", "languages"]

LANGUAGE = "english"
"""Whose endings are cut off by default."""

_CHUNK = re.compile(r"\w+(?:(?:[.\-'’/:@]|(?<=\d),(?=\d))\w+)*(?:\+\+|#)?")
"""What stands together: a word, ``os.path.join``, ``state-of-the-art``, ``1,000``, ``C++``."""
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_BREAK = re.compile(r"[\W_]+")
_UNSPACED = re.compile(
    "([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]+)"
)
"""Thai, Lao, Burmese, Khmer, Kana, Han and Hangul: runs without blanks, searched by one and two characters."""
_KEPT = 1 << 20  # chunks remembered


class Word(NamedTuple):
    """A word as it is compared, and the number it is stored under."""

    text: str
    term: int


class Analyser:
    """Turns texts into words: the same for documents and for queries.

    A chunk of text gives its parts and, where they stand together on purpose, the whole: ``os.path.join`` is
    found by ``join`` and, better, by itself; so are ``snake_case``, ``CamelCase``, ``e-mail``, ``3.11``, ``C++``.

    Args:
        language: Whose endings are cut off (``"english"``, see :func:`languages`); ``None`` for none.
    """

    def __init__(self, language: str | None = LANGUAGE) -> None:
        self.language = language
        self._stem = _stemmer(language)
        self._known: dict[str, tuple[Word, ...]] = {}

    def words(self, text: str) -> list[Word]:
        """The words of a text in their order, repeated as they are."""
        known = self._known
        found: list[Word] = []
        for chunk in _CHUNK.findall(text if text.isascii() else unicodedata.normalize("NFKC", text)):
            words = known.get(chunk)
            if words is None:
                if len(known) >= _KEPT:
                    known.clear()
                words = known[chunk] = tuple(Word(word, _term(word)) for word in self._spell(chunk))
            found += words
        return found

    def _spell(self, chunk: str) -> Iterator[str]:
        """The words of one chunk."""
        stem = chunk.rstrip("+#")
        if stem != chunk:
            yield _fold(chunk)
        if stem[-2:] in ("'s", "’s"):
            stem = stem[:-2]
        if stem.replace(",", "").isdecimal():
            yield stem.replace(",", "")
            return
        parts = [part for piece in _BREAK.split(stem) for part in _CAMEL.split(piece) if part]
        for part in parts:
            yield from self._part(part)
        if len(parts) > 1 and "'" not in stem and "’" not in stem:
            yield _fold(stem.replace("-", ""))

    def _part(self, part: str) -> Iterator[str]:
        if part.isascii():
            yield self._stem(part.lower())
            return
        for place, run in enumerate(_UNSPACED.split(part)):
            if place % 2:
                yield from run
                yield from (run[at : at + 2] for at in range(len(run) - 1))
            elif run:
                plain = run.casefold() if self.language not in (None, LANGUAGE) else _fold(run)  # loan words
                yield _fold(self._stem(plain))


@cache
def analyser_of(language: str | None) -> Analyser:
    """One for all who read or write in a language: it remembers the words it has seen."""
    return Analyser(language)


def _fold(text: str) -> str:
    """Without case and diacritics."""
    text = text.casefold()
    if text.isascii():
        return text
    return "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))


def _term(word: str) -> int:
    """64 bits in which two words of one index do not meet in practice."""
    return int.from_bytes(blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def languages() -> list[str]:
    """The languages whose endings can be cut off."""
    import Stemmer

    return sorted(Stemmer.algorithms())


def check_language(language: str | None) -> str | None:
    """Raise on a language there is no stemmer for."""
    if language is not None and language not in languages():
        raise ConfigError(
            f"there is no stemmer for language={language!r}; languages: {', '.join(languages())}, or None"
        )
    return language


def _stemmer(language: str | None) -> Callable[[str], str]:
    if language is None:
        return lambda word: word
    import Stemmer

    stem: Callable[[str], str] = Stemmer.Stemmer(language).stemWord
    return stem
