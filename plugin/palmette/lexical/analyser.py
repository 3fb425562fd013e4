"""Split texts into search words: case-folded, stemmed, with identifiers, numbers and scripts without spaces."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache
from hashlib import blake2b
from typing import NamedTuple

from palmette.errors import ConfigError, shown

LANGUAGE = "english"
"""Language of the default stemmer."""

_CHUNK = re.compile(r"\w+(?:(?:[.\-'’/:@]|(?<=\d),(?=\d))\w+)*(?:\+\+|#)?")
"""A chunk: a word, ``os.path.join``, ``state-of-the-art``, ``1,000``, ``C++``."""
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_BREAK = re.compile(r"[\W_]+")
_UNSPACED = re.compile(
    "([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]+)"
)
"""Thai, Lao, Burmese, Khmer, Kana, Han and Hangul: runs without spaces, indexed by one and two characters."""
_CACHED = 1 << 20  # chunks whose words are remembered


class Word(NamedTuple):
    """A normalised word and its 64-bit number in the postings."""

    text: str
    term: int


class Analyser:
    """Splits documents and queries into words, stemmed in a language of :func:`languages` (``None``: not at all).

    A compound gives its parts and the whole: ``os.path.join`` is found by ``join`` and, better, by itself; so are
    ``snake_case``, ``CamelCase``, ``e-mail``, ``3.11``, ``C++``.
    """

    def __init__(self, language: str | None = LANGUAGE) -> None:
        self.language = language
        self._stem: Callable[[str], str] = str
        if language is not None:
            import Stemmer

            self._stem = Stemmer.Stemmer(language).stemWord
        self._cache: dict[str, tuple[Word, ...]] = {}

    def words(self, text: str) -> list[Word]:
        """List the words of a text in order, repetitions included."""
        cache = self._cache
        found: list[Word] = []
        for chunk in _CHUNK.findall(text if text.isascii() else unicodedata.normalize("NFKC", text)):
            words = cache.get(chunk)
            if words is None:
                if len(cache) >= _CACHED:
                    cache.clear()
                words = cache[chunk] = tuple(map(_numbered, self._spell(chunk)))
            found += words
        return found

    def matches(self, query: str, text: str) -> list[tuple[int, int]]:
        """Places in a text of words that a query has too."""
        wanted = {word.term for word in self.words(query)}
        found = []
        for chunk in _CHUNK.finditer(text):
            if any(word.term in wanted for word in self.words(chunk[0])):
                found.append(chunk.span())
        return found

    def _spell(self, chunk: str) -> Iterator[str]:
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
            if part.isascii():
                yield self._stem(part.lower())
                continue
            for place, run in enumerate(_UNSPACED.split(part)):
                if place % 2:
                    yield from run
                    yield from (run[at : at + 2] for at in range(len(run) - 1))
                elif run:
                    loaned = self.language in (None, LANGUAGE)  # words of other languages lose their accents
                    yield _fold(self._stem(_fold(run) if loaned else run.casefold()))
        if len(parts) > 1 and "'" not in stem and "’" not in stem:
            yield _fold(stem.replace("-", ""))


@cache
def analyser_of(language: str | None) -> Analyser:
    """Return the shared analyser of a language; it caches the chunks it has seen."""
    return Analyser(language)


def _fold(text: str) -> str:
    """Remove case and diacritics."""
    text = text.casefold()
    if text.isascii():
        return text
    return "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))


def _numbered(word: str) -> Word:
    digest = blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()  # no two words collide
    return Word(word, int.from_bytes(digest, "little"))


def languages() -> list[str]:
    """List the languages that have a stemmer."""
    import Stemmer

    return sorted(Stemmer.algorithms())


def check_language(language: str | None) -> str | None:
    """Raise ConfigError for a language without a stemmer."""
    if language is not None and language not in languages():
        raise ConfigError(
            f"there is no stemmer for language={shown(language)}; languages: {', '.join(languages())}, or None"
        )
    return language
