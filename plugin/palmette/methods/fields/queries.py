"""Queries made from fields, for a catalogue that nobody has judged: as people would ask for its documents.

The kinds, of which each document gives what it can:

* ``name``       words of its shortest telling field (a title), some dropped, in any order
* ``pair``       a short field and words of another: brand + what it is
* ``attribute``  one or two values of a field that lists many, with words of a title
* ``phrase``     a run of words from its longest field

And of all documents together:

* ``common``     a word, or two neighbours, that the titles of several documents share ("laptop", "gaming mouse"):
  what shops are asked for most, and what teaches most (tests/benchmarks/results/fields.md)
* ``word``       every other word of any field, so that none that is asked for was never heard of

The document that a query was made from answers it,
and whatever else holds all of its words does so as well, as far as training knows.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from tqdm.auto import tqdm

from palmette.errors import InputError
from palmette.methods.fields.reading import Reader
from palmette.types import Document

if TYPE_CHECKING:
    from palmette.data import RetrievalData

__all__ = ["KINDS", "MADE", "WORDS", "common_phrases", "field_queries", "with_field_queries"]

MADE = "made queries"
"""The split of the queries that train beside judged ones."""
WORDS = "made words"
"""The split of the queries of single words, by which only what words add is learned."""
EACH = 3
"""Queries tried for each document."""
KEPT = 60_000
"""Queries kept of a large catalogue."""
_SHORT, _TITLE = 4, 12
"""Words up to which a field is a name to be given whole, and a title to be drawn from."""
_HELD, _SHARE, _ANSWERS = 4, 0.25, 20
"""A phrase is common that so many documents have, and not so large a share of them; answers given of each."""
_ENOUGH = 500
"""Common phrases from which on there are no more queries of other kinds than of this one."""
_WORD = re.compile(r"[^\W_]+(?:['’.\-/][^\W_]+)*")
_SPLIT = re.compile(r"[,;|\n]|(?<=[^\d])[.:](?=\s)")

Fields = Mapping[str, str]


def _words(text: str) -> list[str]:
    return _WORD.findall(text)


def _some(words: Sequence[str], draw: random.Random, least: int = 1, most: int = 5) -> list[str]:
    """Some of the words; half the time in their order."""
    count = draw.randint(min(least, len(words)), min(most, len(words)))
    chosen = sorted(draw.sample(range(len(words)), count))
    if draw.random() < 0.5:
        draw.shuffle(chosen)
    return [words[at] for at in chosen]


def _titles(fields: Fields) -> list[list[str]]:
    """The fields that say what a document is, the most telling first: neither a word, nor a text, nor a list."""
    there = []
    for name, text in fields.items():
        if words := _words(text):
            unfit = text.count(": ") > 1 or len(words) > 2 * _TITLE
            there.append((unfit, name != "title", len(words) if unfit else -len(words), words))
    return [words for *_, words in sorted(there)]


def _name(fields: Fields, draw: random.Random) -> list[str]:
    titles = _titles(fields)
    # What comes first in a title says most.
    return _some(titles[0][: draw.choice((4, 8, _TITLE))], draw, 1, 4) if titles else []


def _pair(fields: Fields, draw: random.Random) -> list[str]:
    short = [words for words in map(_words, fields.values()) if 0 < len(words) <= _SHORT]
    titles = [words for words in _titles(fields) if len(words) > 1]
    if not short or not titles:
        return []
    first = draw.choice(short)
    rest = [word for word in titles[0][:_TITLE] if word.lower() not in {w.lower() for w in first}]
    return [*first, *_some(rest, draw, 1, 2)] if rest else []


def _attribute(fields: Fields, draw: random.Random) -> list[str]:
    values = [
        _words(part.partition(": ")[2] or part) for text in fields.values() for part in _SPLIT.split(text)
    ]
    telling = [words for words in values if 0 < len(words) <= 3 and any(len(word) > 2 for word in words)]
    titles = _titles(fields)
    if len(telling) < 3 or not titles:
        return []
    asked = [word for words in draw.sample(telling, draw.randint(1, 2)) for word in words]
    return [*asked, *_some(titles[0][:_TITLE], draw, 1, 2)]


def _phrase(fields: Fields, draw: random.Random) -> list[str]:
    words = _words(max(fields.values(), key=len, default=""))
    size = min(len(words), draw.randint(3, 8))
    start = draw.randint(0, max(0, min(len(words), 120) - size))
    return words[start : start + size]


KINDS: Mapping[str, Callable[[Fields, random.Random], list[str]]] = {
    "name": _name,
    "pair": _pair,
    "attribute": _attribute,
    "phrase": _phrase,
}
_SHARES = (0.35, 0.3, 0.2, 0.15)


def field_queries(fields: Fields, draw: random.Random, each: int = EACH) -> list[tuple[str, str]]:
    """Queries that the fields of a document answer, with their kinds; each once."""
    made: dict[str, str] = {}
    there = {name: text for name, text in fields.items() if text}
    for kind in draw.choices(list(KINDS), _SHARES, k=each):
        words = KINDS[kind](there, draw) or _name(there, draw)
        text = " ".join(dict.fromkeys(word.lower() for word in words))
        if len(text) > 1:
            made.setdefault(text, kind)
    return [(kind, text) for text, kind in made.items()]


def common_phrases(titles: Sequence[Sequence[str]]) -> dict[str, list[int]]:
    """Words, and two neighbours, that several titles share, and which titles these are."""
    held: dict[str, list[int]] = {}
    for at, words in enumerate(titles):
        low = [word.lower() for word in words]
        for phrase in dict.fromkeys([*low, *map(" ".join, pairwise(low))]):
            held.setdefault(phrase, []).append(at)
    most = max(_HELD, int(_SHARE * len(titles)))
    return {
        phrase: rows
        for phrase, rows in held.items()
        if _HELD <= len(rows) <= most
        and any(len(word) > 2 and not word[0].isdigit() for word in phrase.split())
    }


def single_words(documents: Sequence[Sequence[str]]) -> dict[str, list[int]]:
    """Words of documents (the texts of each) that not too many have, and which these are; the most frequent first."""
    held: dict[str, list[int]] = {}
    for at, texts in enumerate(documents):
        for word in dict.fromkeys(word.lower() for text in texts for word in _words(text)):
            held.setdefault(word, []).append(at)
    most = max(_HELD, int(_SHARE * len(documents)))
    telling = {
        word: rows
        for word, rows in held.items()
        if len(rows) <= most and len(word) > 1 and any(letter.isalpha() for letter in word)
    }
    return dict(sorted(telling.items(), key=lambda item: -len(item[1])))


def with_field_queries(data: RetrievalData, reader: Reader, seed: int) -> RetrievalData:
    """The same documents with such queries as training and validation, instead of those made from texts.

    Judged queries stay, with splits of made ones beside theirs.
    """
    documents: Sequence[Document] = data.corpus
    each = max(1, min(EACH, KEPT // len(documents)))
    draw = np.random.default_rng(seed)
    chosen = range(len(documents))
    if len(documents) > KEPT:
        chosen = np.sort(draw.permutation(len(documents))[:KEPT]).tolist()
    queries: dict[str, str] = {}
    qrels: dict[str, dict[str, int]] = {}
    titles: list[list[str]] = []
    texts: list[list[str]] = []
    for row in tqdm(chosen, desc="Making queries", unit="document", delay=2, leave=False, disable=None):
        document = documents[row]
        fields = dict(zip(reader.names, reader.read(document), strict=True))
        titles.append(next(iter(_titles(fields)), []))
        texts.append(list(fields.values()))
        for number, (kind, text) in enumerate(
            field_queries(fields, random.Random(f"{seed}:{document.key}"), each)
        ):
            key = _unused(f"{kind}-{number}-{document.key}", data)
            queries[key], qrels[key] = text, {document.key: 1}
    common = list(common_phrases(titles).items())[:KEPT]
    if len(common) >= _ENOUGH and len(queries) > len(common):
        kept = np.sort(draw.permutation(len(queries))[: len(common)])
        names = list(queries)
        queries = {names[at]: queries[names[at]] for at in kept.tolist()}
        qrels = {name: qrels[name] for name in queries}
    known = {phrase for phrase, _ in common}
    words = [item for item in single_words(texts).items() if item[0] not in known][:KEPT]
    alone: dict[str, dict[str, int]] = {}
    for number, (phrase, rows) in enumerate([*common, *words]):
        some = [rows[at] for at in draw.permutation(len(rows))[:_ANSWERS].tolist()]
        kind, judged = ("common", qrels) if number < len(common) else ("word", alone)
        key = _unused(f"{kind}-{number}", data)
        queries[key], judged[key] = phrase, {documents[chosen[at]].key: 1 for at in some}
    if not qrels:
        raise InputError(f"{data.name}: no queries could be made from the fields {', '.join(reader.names)}")
    if data.labelled:
        beside = {**data.qrels, MADE: qrels, WORDS: alone}
        return replace(data, queries={**data.queries, **queries}, qrels=beside)
    made = replace(data, queries=queries, qrels={"train": qrels}, labelled=False, remainders={})
    made = made.with_dev(0.1, seed)
    return replace(made, qrels={**made.qrels, WORDS: alone})


def _unused(key: str, data: RetrievalData) -> str:
    """The key, or one like it that no judged query has."""
    return data.unused(key) if data.labelled else key
