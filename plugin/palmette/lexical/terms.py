"""Telling terms: words and word pairs that are frequent in some texts and rare in the others.

A term counts once per text. Its weight in a group of texts is what it adds to the divergence of the group from all
texts, p log(p / q), where p of the group's texts and q of all texts have it: frequent in the group, and more frequent
than elsewhere. It names more of a group's title than log-odds, mutual information and class-TF-IDF do, and its words go
as well together (benchmarks/results/topics.md).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError

from palmette.arrays import Rows
from palmette.errors import CheckpointError, shown

Weights = NDArray[np.float64]
TopicTerms = Mapping[str, Sequence[tuple[str, float]]]
"""Name of a group of texts → its terms with their weights, strongest first."""

MAX_CHARACTERS = 1500
"""Number of characters read from each text."""
RARE = 3
"""Smallest number of texts that contain a term."""
COMMON = 0.6
"""Largest share of texts that contain a term."""
MIN_WEIGHT = 0.01
"""Smallest weight of a term that names a group."""
PAIR_BONUS = 1.1
"""Factor on the weight of pairs, so that a pair goes before its words."""

_Term = Annotated[str, Field(strict=True, min_length=1, max_length=80)]
_Weight = Annotated[float, Field(strict=True, allow_inf_nan=False)]
_TERMS = TypeAdapter(dict[str, list[tuple[_Term, _Weight]]])

_MARKS = "\u0300-\u036f\u0900-\u0963\u0966-\u0dff\u0e00-\u0e4e"  # signs that belong to the letter before them
_ALONE = re.compile("[\u3040-\u30ff\u3400-\u9fff]")  # written without spaces: each is a word, two make a term
_WORD = re.compile(rf"{_ALONE.pattern}|(?:(?!{_ALONE.pattern})[\w{_MARKS}'’])+")
_STOP = frozenset(
    "a about above after again against all almost along already also although always am among an and another any "
    "are aren't around as at be became because become been before behind being below between both but by can can't "
    "cannot could couldn't did didn't do does doesn't doing don't done down during each either else enough even "
    "ever every few first for from further get give given go got had hadn't has hasn't have haven't having he her here "
    "hers herself him himself his how however i if in into is isn't it its itself just last least less let like made "
    "make makes many may me might more most much must my myself near neither never next no nor not now of off often "
    "on once one only onto or other others our ours out over own per perhaps quite rather really said same see seem "
    "she should shouldn't since so some still such take than that the their theirs them themselves then there these "
    "they this those though through thus to together too toward towards under until up upon us use used using very "
    "was wasn't we well were weren't what when where whether which while who whom whose why will with within without "
    "won't would wouldn't yet you your yours yourself".split()
)


def count_terms(texts: Iterable[str]) -> tuple[list[str], Rows, Rows]:
    """Count terms in texts: return the spelled terms, and the text's and the term's number of every occurrence."""
    documents = list(texts)
    telling = _neither_rare_nor_common(set(_words(text)) for text in documents)
    found = [set(_terms(text, telling)) for text in documents]
    number = _neither_rare_nor_common(found)
    occurrences = [(row, number[term]) for row, terms in enumerate(found) for term in terms & number.keys()]
    text, term = np.array(sorted(occurrences), np.int64).reshape(-1, 2).T
    return list(number), text, term


def _neither_rare_nor_common(texts: Iterable[set[str]]) -> dict[str, int]:
    """Number the terms in alphabetical order that at least ``RARE`` texts have, and at most ``COMMON`` of all."""
    counts, total = Counter[str](), 0
    for terms in texts:
        counts.update(terms)
        total += 1
    kept = sorted(term for term, count in counts.items() if RARE <= count <= COMMON * total)
    return {term: number for number, term in enumerate(kept)}


def _words(text: str) -> Iterator[str]:
    """Split a text into words without quotes and possessive s; yield an empty string for stop words and numbers."""
    for match in _WORD.findall(text[:MAX_CHARACTERS].lower()):
        word = match.strip("'’_").replace("’", "'").removesuffix("'s")
        fits = word[:1].isalpha() and word not in _STOP and (len(word) > 1 or _ALONE.match(word))
        yield word if fits else ""


def _terms(text: str, telling: Mapping[str, int]) -> Iterator[str]:
    """Yield the telling words of a text, and each pair of them that stands side by side."""
    before = ""
    for word in _words(text):
        known = word and word in telling
        alone = known and _ALONE.match(word)
        if known and not alone:
            yield word
        if known and before and before != word:
            yield before + ("" if alone and _ALONE.match(before) else " ") + word
        before = word if known else ""


def add_counts(node: Rows, term: Rows, count: Rows, terms: int) -> tuple[Rows, Rows, Rows]:
    """Sum the counts of equal (group, term) pairs."""
    keys = node * terms + term
    order = np.argsort(keys)
    keys, count = keys[order], count[order]
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    node, term = np.divmod(keys[first], max(1, terms))
    return node, term, np.add.reduceat(count, first) if len(first) else count


def divergence(count: Rows, texts: Rows, total: Rows, all_texts: int) -> Weights:
    """Return p log(p / q) of terms in groups [E], with p = count / texts and q = total / all_texts.

    ``count`` of the group's ``texts`` and ``total`` of ``all_texts`` contain the term. A term in one text of the group
    only gets 0.
    """
    p, q = count / texts, total / all_texts
    weights: Weights = np.where(count > 1, p * np.log(p / q), 0.0)
    return weights


def top_terms(
    node: Rows, term: Rows, weight: Weights, spelled: Sequence[str], most: int
) -> Iterator[tuple[int, list[tuple[str, float]]]]:
    """Choose the best terms of each group, without terms that share a word with a better one."""
    pair = np.array([" " in word for word in spelled], bool)
    order = np.lexsort((term, -weight * np.where(pair[term], PAIR_BONUS, 1.0), node))
    order = order[weight[order] > MIN_WEIGHT]
    starts = np.flatnonzero(np.diff(node[order], prepend=-1))
    for run in np.split(order, starts[1:]):
        chosen: list[tuple[str, float]] = []
        known: set[str] = set()
        for at in run[: 8 * most].tolist():
            words = spelled[term[at]].split()
            parts = {w[:-1] if len(w) > 3 and w.endswith("s") else w for w in words}  # without a plural's s
            if not parts & known:
                chosen.append((spelled[term[at]], round(float(weight[at]), 3)))
                known |= parts
            if len(chosen) == most:
                break
        if chosen:
            yield int(node[run[0]]), sorted(chosen, key=lambda pair: -pair[1])


def terms_to_json(terms: TopicTerms) -> bytes:
    """Encode terms as JSON for a checkpoint."""
    return json.dumps(dict(terms), ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()


def terms_from_json(data: bytes, where: str, named: Callable[[str], bool], example: str) -> TopicTerms:
    """Read back :func:`terms_to_json`; raise CheckpointError for anything else.

    ``named`` validates the names of groups; ``example`` is a name for the error.
    """
    try:
        terms = _TERMS.validate_json(data)
        if not (wrong := [name for name in terms if not named(name)]):
            return terms
        why = shown(wrong[0])
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        why = f"{'.'.join(map(str, first['loc']))} {first['msg']}".strip()
    raise CheckpointError(
        f"{where} is no JSON that maps each {example} to a list of [term, weight]: {why}; save the checkpoint again"
    )
