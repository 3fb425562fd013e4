"""How much words count beside a method's own score, and how that is learned.

The method's scale comes from its scores alone, the weight from judged queries. On four collections
(tests/benchmarks/results/hybrid.md) one weight serves queries of all kinds: weights by query (length, rarity of words,
numbers, lead of the best document), learned on three collections, did worse on the fourth.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from palmette.arrays import best_of_each
from palmette.config import Config
from palmette.errors import ConfigError
from palmette.metrics import Judgements, query_scores
from palmette.search.plan import Floats
from palmette.types import Explanation, Part

Numbers = NDArray[Any]

Lexical = float | Literal["auto"]
"""The weight of words in a search, 0 … 1, or ``"auto"`` for the model's own."""

DEFAULT: Lexical = "auto"
"""Weight of a search that gives none; ``palmette.evaluate`` measures methods alone."""

LIFT = 2.5
"""Value of full agreement in words, in distances of a query's best document from the average one."""
WEIGHTS = (*(n / 20 for n in range(17)), 0.9, 1.0)
K = 10  # of nDCG
WORDS_SHOWN = 5  # in an explanation's text


class LexicalWeight(Config):
    """A document's score is ``(1 − weight) · method + weight · scale · words^1.5``.

    ``method`` is the method's score and ``words`` the share of the query's weight in words that the document
    answers, 0 … 1. Neither depends on what else is found, so a score means the same in every search. The power
    lets words count where they agree as a whole, and little where a few happen to occur.
    """

    weight: Annotated[float, Field(ge=0, le=1)] = 0.5
    """How much words count, 0 … 1."""
    scale: Annotated[float, Field(gt=0)] = 1.0
    """Value of full agreement in words in the method's units, so that a weight of one half is a balance."""

    def score(self, method: Numbers, words: Numbers) -> Numbers:
        """Mix scores of the method and shares of words, in float64."""
        words = np.asarray(words, np.float64)
        own = (1 - self.weight) * np.asarray(method, np.float64)
        return np.asarray(own + self.value_per_share(words) * words)

    def value_per_share(self, words: Numbers) -> Numbers:
        """Return the factor of a document's share: its words' parts times this add up to their part of the score."""
        value: Numbers = self.weight * self.scale * np.sqrt(words)
        return value


def check_lexical(value: object) -> Lexical:
    """Check a number between 0 and 1, or ``"auto"``."""
    if value == "auto":
        return "auto"
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if number and 0 <= (weight := float(value)) <= 1:  # type: ignore[arg-type]
        return weight
    raise ConfigError(
        f"lexical must be a number from 0 (no words) to 1 (words alone), or 'auto'; got {value!r}"
    )


def options_key(options: Config) -> str:
    """Name search options: empty for the defaults, else what differs from them, as JSON."""
    plain = type(options)().to_dict()
    differing = {name: value for name, value in options.to_dict().items() if value != plain[name]}
    return json.dumps(differing, sort_keys=True) if differing else ""


def scale_of(method: Floats) -> float:
    """Estimate a method's scale from scores [Q, N] of any queries: how far the best stands above the average."""
    lift = float(np.mean(method.max(axis=1) - method.mean(axis=1, dtype=np.float64)))
    return max(round(LIFT * lift, 4), 1e-6)


def learn_weight(method: Floats, words: Floats, judgements: Judgements | None) -> LexicalWeight:
    """Learn from a method's scores and the shares of words, [Q, N] each, of the same queries and documents.

    With judgements it takes the best weight by nDCG@10, less a prior's penalty on weights far from a half, worth one
    query (five when there are only ten). On held-out queries of four collections it is as good as the best weight from
    a hundred queries on, and far steadier below.
    """
    plain = LexicalWeight(scale=scale_of(method))
    if judgements is None:
        return plain
    rated = judgements.relevant > 0
    mixes = (plain.replace(weight=weight).score(method, words) for weight in WEIGHTS)
    quality = [_ndcg(mixed, judgements)[rated].mean() for mixed in mixes]
    queries, away = int(rated.sum()), np.array(WEIGHTS) - plain.weight
    penalty = (1 + 40 / queries) / queries * away**2
    return plain.replace(weight=WEIGHTS[int((np.array(quality) - penalty).argmax())])


def _ndcg(scores: NDArray[np.floating[Any]], judgements: Judgements) -> NDArray[np.float64]:
    return query_scores(best_of_each(scores, K), judgements, ks=(K,))[f"ndcg@{K}"]


def best_weights(tables: Floats, judgements: Judgements | None) -> tuple[float, ...]:
    """Weigh several rankings' scores [M, Q, N]: equally, moved where held-out judgements clearly gain by it."""
    count = len(tables)
    weights = np.full(count, 1 / count)
    if judgements is None:
        return tuple(weights.tolist())
    rated = judgements.relevant > 0

    def quality(given: NDArray[np.float64]) -> NDArray[np.float64]:
        return _ndcg(np.tensordot(given, tables, 1), judgements)[rated]

    held = quality(weights)
    for place in (*range(count), *range(count)):
        for factor in (0.0, 0.5, 2.0, 4.0):
            tried = weights.copy()
            tried[place] *= factor
            if tried.sum() == 0:
                continue
            tried /= tried.sum()
            gain = quality(tried) - held
            if gain.mean() > gain.std() / np.sqrt(max(1, rated.sum())):
                weights, held = tried, held + gain
    return tuple(weights.tolist())


def explain_words(
    method_explanation: Explanation, words: Sequence[str], shares: Sequence[float], lexical: LexicalWeight
) -> Explanation:
    """Add the words that matched to a method's explanation, each weighted: parts add up to the mixed score."""
    own, rest = method_explanation, 1 - lexical.weight
    parts = [Part(part.name, rest * part.value, part.detail) for part in own.parts]
    value = float(lexical.value_per_share(np.asarray(sum(shares))))
    added = {word: value * share for word, share in zip(words, shares, strict=True) if share > 0}
    parts += [Part(f"word {word!r}", worth, {"word": word}) for word, worth in added.items()]
    best = sorted(added, key=lambda word: -added[word])[:WORDS_SHOWN]
    listed = ", ".join(f"{word} (+{added[word]:.3f})" for word in best)
    listed += ", …" if len(added) > WORDS_SHOWN else ""
    text = f"{own.text}; of that {rest:.0%}, and words in common: {listed or 'none'}"
    detail = {**own.detail, "lexical": {"weight": lexical.weight, "scale": lexical.scale, "words": added}}
    return Explanation(rest * own.score + sum(added.values()), parts, text, detail)
