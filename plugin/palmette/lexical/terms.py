"""Telling terms: words and word pairs that are frequent in some texts and rare in the others.

A term counts once per text. Its weight in a group of texts is the log-odds of meeting it there against the rest,
both smoothed by its frequency over all texts, in units of its standard error (Monroe, Colaresi and Quinn, 2008):
frequent enough to be no accident, and the group's own.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from palmette.errors import CheckpointError

__all__ = [
    "Terms",
    "check_terms",
    "log_odds",
    "merged",
    "occurrences",
    "strongest",
    "terms_from_json",
    "terms_to_json",
]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Terms = Mapping[str, Sequence[tuple[str, float]]]
"""Name of a group of texts → its terms with their weights, strongest first."""

READ = 1500
"""Characters of a text that are read."""
RARE, COMMON = 3, 0.6
"""Terms of fewer texts, or of a larger share of them, tell nothing."""
SURE = 2.0
"""Standard errors that a term's log-odds must lie above 0."""
PRIOR = 10.0
"""Imagined texts, of average words, that are added to both sides."""
PAIRED = 1.1
"""How much weaker a pair may be and still go before its words."""
LONGEST = 80
"""Characters of a term that a checkpoint may hold."""

_MARKS = "\u0300-\u036f\u0900-\u0963\u0966-\u0dff\u0e00-\u0e4e"  # signs that belong to the letter before them
_ALONE = "\u3040-\u30ff\u3400-\u9fff"  # written without spaces: each character is a word, two make a term
_ALONE_WORD = re.compile(f"[{_ALONE}]")
_WORD = re.compile(rf"[\w{_MARKS}'’]+")
_MIXED_WORD = re.compile(rf"[{_ALONE}]|(?:(?![{_ALONE}])[\w{_MARKS}'’])+")
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


def occurrences(texts: Iterable[str]) -> tuple[list[str], Ints, Ints]:
    """The telling terms of all texts, and, for every text that has one, the text's and the term's number."""
    words, word, text = _words(texts)
    alone = np.array([_ALONE_WORD.match(w) is not None for w in words], bool)
    telling = np.bincount(word, minlength=len(words)) >= RARE
    worded = (
        w not in _STOP and not w[0].isdigit() and (len(w) > 1 or a) for w, a in zip(words, alone, strict=True)
    )
    telling &= np.fromiter(worded, bool, len(words))
    single = telling[word] & ~alone[word]
    pair = telling[word[:-1]] & telling[word[1:]] & (text[:-1] == text[1:]) & (word[:-1] != word[1:])
    # a word w alone has the key w, the pair v w the key (v + 1)·V + w
    keys = np.concatenate([word[single], (word[:-1][pair] + 1) * len(words) + word[1:][pair]])
    text = np.concatenate([text[single], text[:-1][pair]])
    terms, term = np.unique(keys, return_inverse=True)
    once = np.sort(text * len(terms) + term)  # np.unique, which hashes, takes several times as long
    text, term = np.divmod(once[np.diff(once, prepend=-1) > 0], max(1, len(terms)))
    often = np.bincount(term, minlength=len(terms))
    most = COMMON * (1 + int(text.max(initial=-1)))
    common = np.zeros(len(words) + 1, bool)  # of words; the last stands for none
    common[terms[(terms < len(words)) & (often > most)]] = True
    first, last = np.divmod(terms, max(1, len(words)))
    kept = (often >= RARE) & (often <= most) & ~common[first - 1] & ~common[last]
    spelled = [_spell(key, words) for key in terms[kept].tolist()]
    held = kept[term]
    return spelled, text[held], (np.cumsum(kept) - 1)[term[held]]


def _words(texts: Iterable[str]) -> tuple[list[str], Ints, Ints]:
    """The distinct words, and of every word of every text its number and the text's: [W], [W]."""
    raw: defaultdict[str, int] = defaultdict()
    raw.default_factory = raw.__len__  # a new word gets the next number
    rows = []
    for given in texts:
        text = given[:READ].lower()
        pattern = _MIXED_WORD if _ALONE_WORD.search(text) else _WORD
        rows.append(np.array([raw[word] for word in pattern.findall(text)], np.int64))
    numbers: defaultdict[str, int] = defaultdict()
    numbers.default_factory = numbers.__len__
    plain = np.array([numbers[_plain(word)] for word in raw], np.int64)
    word = np.concatenate([np.empty(0, np.int64), *rows])
    return list(numbers), plain[word], np.repeat(np.arange(len(rows)), [len(row) for row in rows])


def _plain(word: str) -> str:
    """Without quotes and possessive s."""
    word = word.strip("'’_").replace("’", "'").removesuffix("'s")
    return word or "'"


def _spell(key: int, words: Sequence[str]) -> str:
    first, last = divmod(key, len(words))
    if not first:
        return words[last]
    pair = words[first - 1], words[last]
    return ("" if all(map(_ALONE_WORD.match, pair)) else " ").join(pair)


def merged(node: Ints, term: Ints, count: Ints, terms: int) -> tuple[Ints, Ints, Ints]:
    """Add up the counts of equal (group, term)."""
    keys = node * terms + term
    order = np.argsort(keys)
    keys, count = keys[order], count[order]
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    node, term = np.divmod(keys[first], max(1, terms))
    return node, term, np.add.reduceat(count, first) if len(first) else count


def log_odds(count: Ints, texts: Ints, total: Ints, all_texts: int) -> Floats:
    """Log-odds of a term in a group against the rest, in standard errors.

    Args:
        count: [E] texts of the group that have the term.
        texts: [E] texts of the group.
        total: [E] texts anywhere that have the term.
        all_texts: How many there are.
    """
    usual = PRIOR * total / all_texts  # [E] the prior's share of texts with the term
    inside, outside = count + usual, total - count + usual
    odds_inside = inside / (texts + PRIOR - inside)
    odds_outside = outside / (all_texts - texts + PRIOR - outside)
    weights: Floats = np.log(odds_inside / odds_outside) / np.sqrt(1 / inside + 1 / outside)
    return weights


def strongest(
    node: Ints, term: Ints, weight: Floats, spelled: Sequence[str], most: int
) -> Iterator[tuple[int, list[tuple[str, float]]]]:
    """The best terms of each group; one that shares a word with a better one is passed over."""
    pair = np.array([" " in word for word in spelled], bool)
    order = np.lexsort((term, -weight * np.where(pair[term], PAIRED, 1.0), node))
    order = order[weight[order] > SURE]
    starts = np.flatnonzero(np.diff(node[order], prepend=-1))
    for run in np.split(order, starts[1:]):
        chosen: list[tuple[str, float]] = []
        known: set[str] = set()
        for at in run[: 8 * most].tolist():
            parts = {_stem(word) for word in spelled[term[at]].split()}
            if not parts & known:
                chosen.append((spelled[term[at]], round(float(weight[at]), 2)))
                known |= parts
            if len(chosen) == most:
                break
        if chosen:
            yield int(node[run[0]]), sorted(chosen, key=lambda pair: -pair[1])


def _stem(word: str) -> str:
    """The word without a plural's s."""
    return word[:-1] if len(word) > 3 and word.endswith("s") else word


def terms_to_json(terms: Terms) -> bytes:
    """For a checkpoint."""
    rows = {name: [list(pair) for pair in listed] for name, listed in terms.items()}
    return json.dumps(rows, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()


def terms_from_json(data: bytes, where: str, named: Callable[[str], bool], example: str) -> Terms:
    """Read back what :func:`terms_to_json` wrote; anything else raises CheckpointError.

    ``named`` says which names there may be, ``example`` what they look like.
    """
    try:
        rows = json.loads(data)
    except ValueError as error:
        raise CheckpointError(f"{where} is no JSON ({error}); save the checkpoint again") from error
    return check_terms(rows, where, named, example)


def check_terms(rows: object, where: str, named: Callable[[str], bool], example: str) -> Terms:
    """What JSON made of some :data:`Terms`, if that is what they are."""
    if not isinstance(rows, dict):
        raise CheckpointError(
            f"{where} must hold an object, got {type(rows).__name__}; save the checkpoint again"
        )
    for name, terms in rows.items():
        if not (named(name) and isinstance(terms, list) and all(map(_is_term, terms))):
            raise CheckpointError(
                f"{where}: {name!r} must be a {example} with a list of [term, weight], got {terms!r:.80}; "
                "save the checkpoint again"
            )
    return {name: [(term, weight) for term, weight in terms] for name, terms in rows.items()}


def _is_term(pair: object) -> bool:
    if not (isinstance(pair, list) and len(pair) == 2):
        return False
    term, weight = pair
    return (
        isinstance(term, str)
        and 0 < len(term) <= LONGEST
        and type(weight) in (int, float)
        and math.isfinite(weight)
    )
