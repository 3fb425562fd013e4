"""Split texts into search words: case-folded, stemmed, with identifiers, numbers and scripts without spaces."""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from functools import cache, lru_cache
from hashlib import blake2b
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from palmette.errors import ConfigError, InputError, shown

LANGUAGE = "english"
"""Default language of the stemmer."""
SCHEME = 2
"""Version of the analysis; an index with another version is refused."""
MAX_QUERY = 100_000
"""Largest number of characters in a query."""
TERM_BITS = 40
"""Bits of a term's number: with 10⁸ words and pairs in an index, one unknown word in 10,000 collides with another."""

_CHUNK = re.compile(r"\w+(?:(?:[.\-'’/:@]|(?<=\d),(?=\d))\w+)*(?:\+\+|#)?")
"""A chunk: a word, ``os.path.join``, ``state-of-the-art``, ``1,000``, ``C++``."""
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_BREAK = re.compile(r"[\W_]+")
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
"""Thai, Lao, Burmese, Khmer, Kana, Han and Hangul, as a part of a regular expression's set: runs without spaces are
indexed by one and two characters."""
_UNSPACED = re.compile(f"([{UNSPACED}]+)")
_GAP = re.compile(r"[\s。、]")  # never part of a chunk, in any normal form
_PIECE = 1 << 15  # characters of a long text that are split at once
_CACHED = 1 << 15  # chunks, and pieces of scripts without spaces, whose words are remembered
_SHORT = 32  # characters of the longest chunk that is remembered
_MARKS = 30  # combining marks that a character may have, as in Unicode's stream-safe text format


FUNCTION_WORDS = {
    language: frozenset(words.split())
    for language, words in {
        "english": "a an and are as at be been but by can could did do does for from had has have he her "
        "him his how i if in into is it its may me might my no not of on or our she should so "
        "such than that the their them then there these they this those to was we were what "
        "when where which who whom whose why will with would you your",
        "french": "au aux avec à c ce ces d dans de des du elle elles en est et été il ils j l la le "
        "les leur lui m mais n ne ou où par pas pour qu que qui s sa se ses son sont sur t un "
        "une",
        "german": "als am an auch auf aus bei bis das dass dem den der des die durch ein eine einem "
        "einen einer es für hat im in ist mit nach nicht oder sein sich sie sind um und über "
        "von vor war was wer wie wird wo zu zum zur",
        "italian": "a al alla che chi ci con da dal dalla dei del della di e è gli ha i il in l la le lo "
        "nel nella non o per più si sono su un una",
        "portuguese": "a ao as à com como da das de do dos e em é foi mais na não no nos o os ou para pela "
        "pelo por que são se sua um uma",
        "spanish": "a al como con cómo cuál de del e el en es fue la las lo los más no o para pero por "
        "que qué quién se son su sus un una y",
    }.items()
}
"""Stop words: pairs skip them, and only a query of nothing else is searched by them."""


class WordKind(IntEnum):
    """Kinds of words."""

    WORD = 0
    """Pairs with its neighbours of this kind."""
    FUNCTION = 1
    """One of :data:`FUNCTION_WORDS`."""
    PIECE = 2
    """One or two characters of a script without spaces; not paired."""
    WHOLE = 3
    """A compound as a whole; its parts are words too."""


class Word(NamedTuple):
    """A normalised word and its 40-bit number in the postings."""

    text: str
    term: int
    kind: WordKind


class Analyser:
    """Splits documents and queries into words, stemmed in a language of :func:`languages` (``None``: not at all).

    A compound gives its parts and the whole: ``os.path.join`` is found by ``join`` and, better, by itself; so are
    ``snake_case``, ``CamelCase``, ``e-mail``, ``3.11``, ``C++``. What holds a digit is not stemmed. Words in capitals
    (``WHO``, ``IT``) are no function words.
    """

    def __init__(self, language: str | None = LANGUAGE) -> None:
        self.language, self._function = language, FUNCTION_WORDS.get(language or "", frozenset())
        self._stemmers = _Stemmers(language)
        self._known = lru_cache(_CACHED)(lambda chunk: tuple(self._spell(chunk)))

    def words(self, text: str) -> list[Word]:
        """List the words of a text in order, repetitions included."""
        words: list[Word] = []
        for chunk in self.chunks(text):
            words += self.words_of_chunk(chunk)
        return words

    def words_of_chunk(self, chunk: str) -> Iterable[Word]:
        """Yield the words of one chunk, cached unless it is long or of a script without spaces, which seldom recurs."""
        seldom = len(chunk) > _SHORT or not (chunk.isascii() or _UNSPACED.search(chunk) is None)
        return self._spell(chunk) if seldom else self._known(chunk)

    def chunks(self, text: str) -> Iterable[str]:
        """Split a text into runs of characters that are analysed by themselves; a long text piece by piece."""
        if len(text) <= _PIECE:
            return _chunks_of(text)
        return chain.from_iterable(map(_chunks_of, _pieces(text)))

    def matches(self, query: str, text: str) -> list[tuple[int, int]]:
        """Find the words of a text that a query contains too: start and end of each."""
        words = self.words(query)
        terms = {word.term for word in words if word.kind != WordKind.FUNCTION} or {word.term for word in words}
        return [
            chunk.span()
            for chunk in _CHUNK.finditer(text)
            if any(word.term in terms for word in self.words_of_chunk(chunk[0]))
        ]

    def _spell(self, chunk: str) -> Iterator[Word]:
        """Yield the words of a chunk of text without blanks: names, numbers, stemmed parts, and the whole."""
        stem = chunk.rstrip("+#")
        named = stem != chunk  # C++, C#
        if named:
            yield _word(_fold(chunk), WordKind.WORD)
        if stem[-2:] in ("'s", "’s"):
            stem = stem[:-2]
        if stem.replace(",", "").isdecimal():
            yield _word(stem.replace(",", ""), WordKind.WORD)
            return
        parts = self._split(stem)
        for part in parts:
            if part.isascii():
                yield self._stemmed(part, part.lower(), paired=not named)
                continue
            for place, run in enumerate(_UNSPACED.split(part)):
                if place % 2:
                    yield from map(_piece, run)
                    yield from (_piece(run[at : at + 2]) for at in range(len(run) - 1))
                elif run:
                    loaned = self.language in (None, LANGUAGE)  # words of other languages lose their accents
                    yield self._stemmed(run, _fold(run) if loaned else run.casefold())
        if len(parts) > 1 and "'" not in stem and "’" not in stem:
            yield _word(_fold(stem.replace("-", "")), WordKind.WHOLE)

    def _split(self, compound: str) -> list[str]:
        """Split at punctuation and inside camelCase, there without parts of one letter: ``mRNA`` is one word."""
        parts: list[str] = []
        for piece in filter(None, _BREAK.split(compound)):
            long = [part for part in _CAMEL.split(piece) if len(part) > 1]
            parts += long if len(long) > 1 else [piece]
        return parts

    def _stemmed(self, part: str, word: str, *, paired: bool = True) -> Word:
        """Make a word of a part in lower case."""
        kind = WordKind.WORD if paired else WordKind.PIECE
        if word in self._function and (len(part) == 1 or not part.isupper()):
            kind = WordKind.FUNCTION
        return _word(_fold(word if any(map(str.isdigit, word)) else self._stemmers.stem(word)), kind)


class _Stemmers(threading.local):
    """A stemmer for each thread, since one keeps the word that it works on; without its own cache, which is slower."""

    def __init__(self, language: str | None) -> None:
        self.stem: Callable[[str], str] = str
        if language is not None:
            import Stemmer

            self.stem = Stemmer.Stemmer(language, 0).stemWord


@cache
def analyser_of(language: str | None) -> Analyser:
    """Return the shared analyser of a language; it caches the chunks it has seen."""
    return Analyser(language)


def pair_terms(first: NDArray[np.uint64], second: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash pairs of words (``first[i]``, ``second[i]``) to term numbers [n]."""
    mixed = first * np.uint64(0x9E3779B97F4A7C15) + second
    mixed ^= mixed >> np.uint64(32)
    return (mixed * np.uint64(0xD6E8FEB86659FD93)) >> np.uint64(64 - TERM_BITS)


def _chunks_of(text: str) -> list[str]:
    return _CHUNK.findall(text if text.isascii() else unicodedata.normalize("NFKC", with_few_marks(text)))


def _pieces(text: str) -> Iterator[str]:
    """Cut a long text at white space, or anywhere if there is none within a piece."""
    start = 0
    while start < len(text):
        gap = _GAP.search(text, start + _PIECE, start + 2 * _PIECE)
        stop = gap.end() if gap else start + 2 * _PIECE
        yield text[start:stop]
        start = stop


def with_few_marks(text: str) -> str:
    """Drop combining marks after thirty in a row: Unicode normalisation sorts them in quadratic time."""
    return _mark_runs().sub(r"\1", text)


@cache
def _mark_runs() -> re.Pattern[str]:
    marks = "".join(filter(unicodedata.combining, map(chr, range(0x300, 0x20000))))
    return re.compile(f"([{marks}]{{{_MARKS}}})[{marks}]+")


def _fold(text: str) -> str:
    """Remove case and diacritics."""
    text = text.casefold()
    if text.isascii():
        return text
    return "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))


@lru_cache(_CACHED)
def _piece(text: str) -> Word:
    return _word(text, WordKind.PIECE)


def _word(text: str, kind: WordKind) -> Word:
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return Word(text, int.from_bytes(digest, "little") >> (64 - TERM_BITS), kind)


def stemmer_version() -> str:
    """Return the version of the stemmer's library; other versions stem some words differently."""
    import Stemmer

    return str(Stemmer.version())


def languages() -> list[str]:
    """List the languages that have a stemmer."""
    import Stemmer

    return sorted(Stemmer.algorithms())


def check_language(language: str | None) -> str | None:
    """Raise ConfigError for a language without a stemmer."""
    value: object = language
    if value is not None and not (isinstance(value, str) and value in languages()):
        raise ConfigError(
            f"there is no stemmer for language={shown(value)}; languages: {', '.join(languages())}, or None"
        )
    return language


def check_query(text: str) -> str:
    """Raise InputError for a query that is too long."""
    if len(text) > MAX_QUERY:
        raise InputError(
            f"the query has {len(text):,} characters, and may have {MAX_QUERY:,}: shorten it, or search for its parts"
        )
    return text
