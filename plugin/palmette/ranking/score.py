"""Meaning and words on absolute scales, their one sum, and the probability that it stands for.

A document's evidence is

    meaning  m = ½ (s − z_s) / u_s + ½ (c − z_c) / u_c
    words    w = share of the query's weight in words that the document answers, 0 … 1
    sum      x = (1 − λ) m + λ (w − h)
    score    P(relevant) = 1 / (1 + exp(−(slope · x + prior + boost)))

with the method's score s, the cosine c of the document's best sentence, and for each a zero z and a unit u: six times
its usual spread over the documents. h = .8 exp(−1.5 r) is the share that a document may have by chance; r counts how
many words in no document would weigh as much as the query's. The boost is what a search adds by metadata. Candidates
are the best documents by the method's score and the best by words; each is scored on everything.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from palmette.arrays import Floats, Keys, Ragged
from palmette.config import Config, parse_json
from palmette.errors import REPAIR, ConfigError, CorruptIndexError, shown
from palmette.ranking.arrays import SCALES, SENTENCES
from palmette.ranking.boost import NO_BOOSTS, Boosts
from palmette.search.plan import Candidates, SearchPlan, View, stack_rows
from palmette.telemetry import span, traced

Lexical = float | Literal["auto"]
"""Weight λ of words in a search, 0 … 1, or ``"auto"`` for the model's own."""

DEFAULT: Lexical = "auto"
"""Weight of a search that gives none."""

SHORTLIST = 100
"""Documents that each of both rankings lists."""

# Shipped coefficients; tests/benchmarks/results/relevance.md says how they were chosen.
WORDS = 0.5
"""Weight λ of words."""
SLOPE = 5.5
"""Log-odds that one unit of evidence adds."""
PRIOR = -3.9
"""Log-odds of a document without evidence among ``USUAL_SIZE`` documents."""
CROWD = 0.2
"""Log-odds that the prior loses each time the collection grows by a factor of e."""
USUAL_SIZE = 2000
"""Documents of the collections that the shipped prior was chosen on."""

COMMON = 0.8
"""Share of a query's words that a document may have by chance, if they are all common."""
RARER = 1.5
"""How soon that share falls as the words are rarer."""

SPREADS = 6.0
"""Standard deviations of the scores over all documents that make one unit of meaning."""
USUAL_MEANING = 0.27
"""Units of meaning of a document that has nothing to do with the question."""

# Evidence of a hit
OWN = "own"
"""The method's own score."""
BEST = "best"
"""Cosine of the best sentence."""
BEST_AT = "best_at"
"""Number of the best sentence within its document."""
SHARE = "share"
"""Share of the query's weight in words that the document answers."""
CHANCE = "chance"
"""Share of words that a document may have by chance."""
BOOST = "boost"
"""Log-odds that a search's boosts add."""
SPAN = "span"
"""Characters of the best sentence: the first, and the one after the last."""

Numbers = NDArray[np.float64]

Search = Callable[[SearchPlan, int], Candidates]
"""Executes the plan of one query for so many documents."""


class Scale(Config):
    """Where a kind of score begins, and how much of it counts as one unit of meaning."""

    zero: float = 0.0
    unit: Annotated[float, Field(gt=0)] = 1.0

    @classmethod
    def of(cls, scores: NDArray[Any], spreads: float = SPREADS) -> Scale:
        """Measure scores [Q, N] of any queries on any documents; NaN is left out.

        A unit is so many usual spreads, or the lead of the best document if that is more, as in sharp trees. The
        usual document has the meaning that it has by the cosines of which the shipped coefficients were learned.
        """
        values = np.asarray(scores, np.float64)
        values = values[~np.isnan(values).all(axis=1)]
        if not len(values):
            return cls()
        mean = np.nanmean(values, axis=1)
        lead = float(np.mean(np.nanmax(values, axis=1) - mean))
        unit = max(spreads * float(np.nanstd(values, axis=1).mean()), lead, 1e-6)
        return cls(zero=float(mean.mean()) - USUAL_MEANING * unit, unit=unit)

    def units(self, scores: NDArray[Any]) -> Numbers:
        """Scores in units of meaning."""
        return np.asarray((np.asarray(scores, np.float64) - self.zero) / self.unit)


class Units(Config):
    """Scales of meaning."""

    own: Scale
    """Of the method's score."""
    sentence: Scale | None = None
    """Of the best sentence's cosine; ``None`` where sentences do not count."""
    documents: Annotated[int, Field(gt=0)] = USUAL_SIZE
    """Number of documents: the more there are, the better is the best that has nothing to do with a question."""


USUAL = Units(own=Scale(unit=0.55), sentence=Scale(unit=0.55))
"""Units of all-MiniLM-L6-v2's cosines, of which the shipped coefficients were learned; and of other encoders where
there are too few documents to measure."""


class Calibration(Config):
    """Coefficients of the sum and of the probability, for one variant of a method's search."""

    words: Annotated[float, Field(ge=0, le=1)] = WORDS
    """Weight λ of words."""
    slope: Annotated[float, Field(gt=0)] = SLOPE
    prior: float = PRIOR
    units: Units | None = None
    """Measured in training; ``None`` leaves it to the index."""
    source: Literal["shipped", "held-out questions"] = "shipped"
    """Where slope and prior come from."""

    def prior_among(self, documents: int) -> float:
        """Log-odds of a document without evidence; the shipped prior is that of USUAL_SIZE documents."""
        if self.source != "shipped":
            return self.prior
        return self.prior - CROWD * float(np.log(min(max(documents, 10), 20_000) / USUAL_SIZE))


SHIPPED = Calibration()


def probability(logit: NDArray[Any]) -> NDArray[np.float32]:
    """Probabilities of log-odds; 0 for −∞."""
    from scipy.special import expit

    return np.asarray(expit(np.asarray(logit, np.float64)), np.float32)


def chance(rarity: float | NDArray[Any]) -> Floats:
    """Share of words that a document may have by chance, from how rare the query's words are together."""
    return np.asarray(COMMON * np.exp(-RARER * np.asarray(rarity)), np.float32)


def check_lexical(value: object) -> Lexical:
    """Check a number between 0 and 1, or ``"auto"``."""
    if isinstance(value, str) and value == "auto":
        return "auto"
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if number and 0 <= value <= 1:  # type: ignore[operator]
        return float(value)  # type: ignore[arg-type]
    raise ConfigError(f"lexical must be a number from 0 (no words) to 1 (words alone), or 'auto'; got {shown(value)}")


def options_key(options: Config) -> str:
    """Name search options: empty for the defaults, else what differs from them, as JSON."""
    plain = type(options)().to_dict()
    differing = {name: value for name, value in options.to_dict().items() if value != plain[name]}
    return json.dumps(differing, sort_keys=True) if differing else ""


@dataclass(frozen=True)
class Evidence:
    """Weighs the evidence of a search of some queries."""

    calibration: Calibration
    units: Units
    texts: Sequence[str] = ()
    """One per query, where words count."""
    vectors: Floats | None = None
    """[Q, d] unit vectors that sentences are compared with, where they count."""
    boosts: Boosts = NO_BOOSTS
    """Log-odds by metadata."""

    @property
    def words(self) -> float:
        """Weight of words."""
        return self.calibration.words if self.texts else 0.0

    def total(self, own: NDArray[Any], best: NDArray[Any], share: NDArray[Any]) -> Numbers:
        """Sum of evidence; documents without sentences (NaN) have the method's score alone for meaning."""
        meaning = self.units.own.units(own)
        if self.units.sentence is not None:
            sentence = self.units.sentence.units(best)
            meaning = np.where(np.isnan(sentence), meaning, (meaning + sentence) / 2)
        return np.asarray((1 - self.words) * meaning + self.words * np.asarray(share, np.float64))

    def logit(self, total: NDArray[Any]) -> Numbers:
        """Log-odds of a sum of evidence."""
        prior = self.calibration.prior_among(self.units.documents)
        return np.asarray(self.calibration.slope * np.asarray(total, np.float64) + prior)

    def rank(self, search: Search, view: View, plan: SearchPlan, k: int) -> Candidates:
        """Find the ``k`` best documents of every query; scores are log-odds."""
        depth = min(max(SHORTLIST, 2 * k), max(1, len(view)))
        read = () if self.vectors is None else (SENTENCES, SCALES)
        view.expect(plan, depth, self.texts, read)
        with span("candidates"):
            found, rows = search(plan, depth), []
        for row in range(len(found.keys)):
            listed = found.one_query(row)
            if self.texts and listed.keys.shape[1] < len(view):
                with span("words"):
                    matched = view.words(self.texts[row], depth if plan.only is None else len(view)).keys
                if plan.only is not None:  # a subtree, outside of which nothing is to be found
                    matched = np.intersect1d(matched, plan.only)
                listed = score_others(search, plan.one_query(row), listed, matched)
            scored = self.score(view, row, listed.keys[0], listed.scores[0])
            order = np.lexsort((scored.keys[0], -listed.scores[0], -scored.scores[0]))
            order = order[scored.scores[0][order] > -np.inf][:k]
            facts = {**listed.evidence, **scored.evidence}
            chosen = {name: array[0][order] for name, array in facts.items()}
            rows.append((scored.keys[0][order], scored.scores[0][order], chosen))
        return stack_rows(rows, found)

    @traced("rank")
    def score(self, view: View, row: int, keys: Keys, own: Floats) -> Candidates:
        """Score documents of one query by everything."""
        best, at = np.full(len(keys), np.nan, np.float32), np.full(len(keys), -1, np.int32)
        if self.vectors is not None and len(keys):
            best, at = best_sentences(view.ragged(SENTENCES, keys), view.ragged(SCALES, keys), self.vectors[row])
        share, lucky, matched = np.zeros(len(keys), np.float32), np.zeros((), np.float32), None
        if self.texts and len(keys):
            matched = view.words(self.texts[row], 0, only=keys)
            share, lucky = matched.scores, chance(matched.rarity)
        logit = self.logit(self.total(own, best, share - lucky))
        evidence = {OWN: own[None], BEST: best[None], BEST_AT: at[None], SHARE: share[None]}
        if self.boosts:
            added = np.array([self.boosts.total(one.metadata) for one in view.documents(keys.tolist())], np.float32)
            logit, evidence[BOOST] = logit + added, added[None]
        if matched is not None and matched.phrases:
            logit = np.where(share > 0, logit, -np.inf)
        evidence[CHANCE] = np.full((1, len(keys)), lucky, np.float32)
        return Candidates(keys[None], logit[None].astype(np.float32), evidence=evidence)


def score_others(search: Search, plan: SearchPlan, found: Candidates, keys: Keys) -> Candidates:
    """Add the scores of further documents (ascending keys) to one query's candidates.

    Those that the method does not score (below a cut-off) count as the last of the candidates.
    """
    others = np.setdiff1d(keys, found.keys[0])
    if not len(others):
        return found
    more = search(plan.among(others), len(others)).one_query(0)
    lost = np.setdiff1d(others, more.keys[0])
    lowest = np.full(len(lost), found.scores.min() if found.scores.size else 0, np.float32)
    evidence = {}
    for name, array in found.evidence.items():
        rest = np.zeros((len(lost), *array.shape[2:]), array.dtype)
        evidence[name] = np.concatenate([array[0], more.evidence[name][0], rest])[None]
    return replace(
        found,
        keys=np.concatenate([found.keys[0], more.keys[0], lost])[None],
        scores=np.concatenate([found.scores[0], more.scores[0], lowest])[None],
        evidence=evidence,
    )


def best_sentences(sentences: Ragged, scales: Ragged, query: Floats) -> tuple[Floats, NDArray[np.int32]]:
    """Cosine and number of each document's sentence nearest to a query [d]; NaN and −1 where there is none."""
    starts = sentences.starts
    best, at = np.full(len(starts) - 1, np.nan, np.float32), np.full(len(starts) - 1, -1, np.int32)
    cosines = (sentences.values.astype(np.float32) @ query) * scales.values.astype(np.float32)
    held = np.flatnonzero(np.diff(starts))
    if len(held):
        tops = np.maximum.reduceat(cosines, starts[held])
        best[held] = tops
        document = np.repeat(np.arange(len(best)), np.diff(starts))
        first = np.flatnonzero(cosines == best[document])[::-1]
        at[document[first]] = first - starts[document[first]]
    return best, at


@lru_cache(64)
def noted_units(text: str) -> Units:
    """Read the units that an index notes with its documents."""
    try:
        noted = parse_json(text)
        if not isinstance(noted, dict):
            raise ValueError(f"{shown(noted)} is no object")
        return Units.from_dict(noted)
    except (TypeError, ValueError) as error:
        raise CorruptIndexError(f"the note of an index's units of meaning is damaged ({error}); {REPAIR}") from error


def read_calibrations(facts: Mapping[str, Any]) -> dict[str, Calibration]:
    """Calibrations of a checkpoint; without one the units are measured on the documents."""
    return {name: Calibration.from_dict(value) for name, value in facts.get("evidence", {}).items()}
