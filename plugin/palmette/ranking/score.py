"""Scoring: meaning and words on absolute scales, their weighted sum, and the probability of relevance.

A document's evidence is

    meaning  m = ½ (s − z_s) / u_s + ½ (c − z_c) / u_c
    words    w = share of the query's weight in words that the document answers, 0 … 1
    sum      x = (1 − λ) m + λ (w − h)
    score    P(relevant) = 1 / (1 + exp(−(slope · x + prior + boost + reranker)))

where s is the method's score and c the cosine of the document's best sentence. Each has a zero z and a unit u of six
standard deviations over all documents (:class:`ScoreScale`). h = .8 exp(−1.5 r) is the share of words expected of an
unrelated document; r is the weight of the query's words, in words that no document contains. A boost adds log-odds
by metadata, and a reranker for the hits whose order is open (:mod:`palmette.ranking.second_stage`). Candidates are the
best documents by the method's score and the best by words; each gets all of the above.

Example: λ = .5, m = .8, w = .7, h = .1 give x = .4 + .3 = .7, and with slope 5.5 and prior −3.9 log-odds of −.05: 49 %.
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
from palmette.machine.telemetry import span
from palmette.ranking.arrays import SENTENCE_SCALES, SENTENCES
from palmette.ranking.boost import Boosts
from palmette.ranking.second_stage import SecondStage
from palmette.search.plan import Candidates, SearchPlan, stack_rows
from palmette.store.protocols import View

Lexical = float | Literal["auto"]
"""Weight λ of words in a search, 0 … 1, or ``"auto"`` for the model's own."""

DEFAULT: Lexical = "auto"
"""Weight of words in a search without ``lexical=``."""

SHORTLIST = 100
"""Number of candidates by the method's score, and by words."""

# Shipped coefficients; benchmarks/results/relevance.md says how they were chosen.
WORDS = 0.5
"""Weight λ of words."""
SLOPE = 5.5
"""Log-odds that one unit of evidence adds."""
PRIOR = -3.9
"""Log-odds of a document without evidence among ``USUAL_SIZE`` documents."""
SIZE_PENALTY = 0.2
"""Corpus size: log-odds that the prior loses per e-fold, since larger corpora produce stronger false hits."""
USUAL_SIZE = 2000
"""Documents of the collections that the shipped prior was chosen on."""

CHANCE_SHARE = 0.8
"""Share of words expected of an unrelated document, if all words of the query are common."""
CHANCE_DECAY = 1.5
"""Rate at which that share falls as the query's words become rarer."""

SPREADS = 6.0
"""Standard deviations of the scores over all documents in one unit of meaning."""
USUAL_MEANING = 0.27
"""Mean score over all documents, in units of its scale: nearly all are unrelated to the question."""

# Evidence of a hit
METHOD_SCORE = "method_score"
"""The method's own score."""
BEST_SENTENCE = "best_sentence"
"""Cosine of the best sentence."""
BEST_SENTENCE_NUMBER = "best_sentence_number"
"""Number of the best sentence within its document."""
WORD_SHARE = "word_share"
"""Share of the query's weight in words that the document answers."""
EXPECTED_WORD_SHARE = "expected_word_share"
"""Share of words expected of an unrelated document."""
BOOST = "boost"
"""Sum of the boosts, in log-odds."""
SPAN = "span"
"""Start and end of the best sentence in its document's content, in characters."""

Numbers = NDArray[np.float64]
"""Sums are kept in float64."""

Execute = Callable[[SearchPlan, int], Candidates]
"""A function that executes the plan of one query: ``search(plan, k)``."""


class ScoreScale(Config):
    """Linear scale on which a kind of score becomes comparable: (score − ``zero``) / ``unit``."""

    zero: float = 0.0
    unit: Annotated[float, Field(gt=0)] = 1.0

    @classmethod
    def measured(cls, scores: NDArray[Any], spreads: float = SPREADS) -> ScoreScale:
        """Measure a scale on scores [Q, N] of any queries on any documents; NaN is left out.

            unit = max(spreads · mean standard deviation, mean of (best − mean))
            zero = mean − USUAL_MEANING · unit

        The second term of the maximum is for sharp trees, where one document stands far above the others.
        """
        values = np.asarray(scores, np.float64)
        values = values[~np.isnan(values).all(axis=1)]
        if not len(values):
            return cls()
        mean = np.nanmean(values, axis=1)
        lead = float(np.mean(np.nanmax(values, axis=1) - mean))
        unit = max(spreads * float(np.nanstd(values, axis=1).mean()), lead, 1e-6)
        return cls(zero=float(mean.mean()) - USUAL_MEANING * unit, unit=unit)

    def apply(self, scores: NDArray[Any]) -> Numbers:
        """Convert scores to units of this scale."""
        return np.asarray((np.asarray(scores, np.float64) - self.zero) / self.unit)


class ScoreScales(Config):
    """Scales of both kinds of scores, and the size of the corpus they belong to."""

    method: ScoreScale
    """ScoreScale of the method's score."""
    sentence: ScoreScale | None = None
    """ScoreScale of the best sentence's cosine; ``None`` where sentences do not count."""
    documents: Annotated[int, Field(gt=0)] = USUAL_SIZE
    """Corpus size: larger corpora produce stronger false hits."""


USUAL = ScoreScales(method=ScoreScale(unit=0.55), sentence=ScoreScale(unit=0.55))
"""Scales of all-MiniLM-L6-v2's cosines, on which the shipped coefficients were learned. An index with fewer than three
documents uses them too."""


class Calibration(Config):
    """Coefficients of the sum and of the probability, for one variant of a method's search."""

    words: Annotated[float, Field(ge=0, le=1)] = WORDS
    """Weight λ of words."""
    slope: Annotated[float, Field(gt=0)] = SLOPE
    prior: float = PRIOR
    score_scales: ScoreScales | None = None
    """Scales measured in training; ``None`` if the index measures them."""
    source: Literal["shipped", "held-out questions"] = "shipped"
    """Source of slope and prior."""

    def prior_among(self, documents: int) -> float:
        """Log-odds of a document without evidence; the shipped prior is corrected for corpus size."""
        if self.source != "shipped":
            return self.prior
        return self.prior - SIZE_PENALTY * float(np.log(min(max(documents, 10), 20_000) / USUAL_SIZE))


SHIPPED = Calibration()
"""Coefficients of models without labelled pairs."""


def probability(logit: NDArray[Any]) -> NDArray[np.float32]:
    """Convert log-odds to probabilities; −∞ gives 0."""
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-np.asarray(logit, np.float64))), np.float32)


def expected_word_share(rarity: float | NDArray[Any]) -> Floats:
    """Return the share of words expected of an unrelated document, by the rarity of the query's words."""
    return np.asarray(CHANCE_SHARE * np.exp(-CHANCE_DECAY * np.asarray(rarity)), np.float32)


def check_lexical(value: object) -> Lexical:
    """Validate the ``lexical`` argument of a search: a number from 0 to 1, or ``"auto"``."""
    if isinstance(value, str) and value == "auto":
        return "auto"
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if number and 0 <= value <= 1:  # type: ignore[operator]
        return float(value)  # type: ignore[arg-type]
    raise ConfigError(f"lexical must be a number from 0 (no words) to 1 (words alone), or 'auto'; got {shown(value)}")


def options_key(options: Config) -> str:
    """Return a key for search options: their differences from the defaults as JSON, empty if there are none."""
    plain = type(options)().to_dict()
    differing = {name: value for name, value in options.to_dict().items() if value != plain[name]}
    return json.dumps(differing, sort_keys=True) if differing else ""


@dataclass(frozen=True)
class Evidence:
    """Scores candidates of a search by everything that counts."""

    calibration: Calibration
    score_scales: ScoreScales
    texts: Sequence[str] = ()
    """Texts of the queries, empty where words do not count (``calibration.words`` is 0 then)."""
    vectors: Floats | None = None
    """[Q, d] unit query vectors for sentences; ``None`` where sentences do not count."""
    boosts: Boosts | None = None
    """Boosts by metadata, if there are any."""
    second: SecondStage | None = None
    """The reranker's judgements, if one is asked."""

    def total(self, method_scores: NDArray[Any], sentence_cosines: NDArray[Any], word_shares: NDArray[Any]) -> Numbers:
        """Return the sum of evidence x; for documents without sentences (NaN) meaning is the method's score alone."""
        meaning = self.score_scales.method.apply(method_scores)
        if self.score_scales.sentence is not None:
            sentence = self.score_scales.sentence.apply(sentence_cosines)
            meaning = np.where(np.isnan(sentence), meaning, (meaning + sentence) / 2)
        words = self.calibration.words
        return np.asarray((1 - words) * meaning + words * np.asarray(word_shares, np.float64))

    def logit(self, total: NDArray[Any]) -> Numbers:
        """Convert a sum of evidence to log-odds, without boosts."""
        prior = self.calibration.prior_among(self.score_scales.documents)
        return np.asarray(self.calibration.slope * np.asarray(total, np.float64) + prior)

    def rank(self, search: Execute, view: View, plan: SearchPlan, k: int) -> Candidates:
        """Find the ``k`` best documents of every query, with log-odds as scores."""
        # 1. the best by the method, for all queries together
        hits = 0 if self.second is None else self.second.reranker.hits
        depth = min(max(SHORTLIST, 2 * k, hits), max(1, len(view)))
        read = () if self.vectors is None else (SENTENCES, SENTENCE_SCALES)
        view.expect(plan, depth, self.texts, read)
        with span("candidates"):
            candidates, rows = search(plan, depth), []
        for row in range(len(candidates.keys)):
            # 2. the best by words beside them, with the method's scores
            listed = candidates.one_query(row)
            if self.texts and listed.keys.shape[1] < len(view):
                with span("words"):
                    matched = view.words(self.texts[row], depth if plan.only is None else len(view)).keys
                if plan.only is not None:  # a search of one subtree
                    matched = np.intersect1d(matched, plan.only)
                listed = score_others(search, plan.one_query(row), listed, matched)
            # 3. all evidence of each; equal ones by the method's score, then by key
            with span("rank"):
                scored = self._sum(view, row, listed.keys[0], listed.scores[0])
            order = np.lexsort((scored.keys[0], -listed.scores[0], -scored.scores[0]))
            # 4. the reranker's judgement of the first ones, if one is asked
            if self.second is not None:
                self.second.judge(view, row, scored.keys[0][order], scored.scores[0][order])
                scored = self.second.apply(row, scored)
                order = np.lexsort((scored.keys[0], -listed.scores[0], -scored.scores[0]))
            # 5. the k best
            order = order[scored.scores[0][order] > -np.inf][:k]
            facts: dict[str, NDArray[Any]] = {}
            for name, array in {**listed.evidence, **scored.evidence}.items():
                facts[name] = array[0][order]
            rows.append((scored.keys[0][order], scored.scores[0][order], facts))
        return stack_rows(rows, candidates)

    def score(self, view: View, row: int, keys: Keys, own: Floats) -> Candidates:
        """Score documents of one query by the method's score ``own`` and all other evidence.

        A reranker's judgement counts for the documents that a search has had judged.
        """
        scored = self._sum(view, row, keys, own)
        return scored if self.second is None else self.second.apply(row, scored)

    def _sum(self, view: View, row: int, keys: Keys, own: Floats) -> Candidates:
        """Score documents of one query by the method's score, best sentence, words and boosts."""
        # 1. meaning: cosine and number of the best sentence, beside the method's score
        best, at = np.full(len(keys), np.nan, np.float32), np.full(len(keys), -1, np.int32)
        if self.vectors is not None and len(keys):
            best, at = best_sentences(
                view.ragged(SENTENCES, keys), view.ragged(SENTENCE_SCALES, keys), self.vectors[row]
            )
        # 2. words: the share of the query that each document answers, and what an unrelated one would answer
        share, expected, matched = np.zeros(len(keys), np.float32), np.zeros((), np.float32), None
        if self.texts and len(keys):
            matched = view.words(self.texts[row], 0, only=keys)
            share, expected = matched.scores, expected_word_share(matched.rarity)
        # 3. their sum as log-odds, then boosts; without a quoted phrase a document is no hit
        logit = self.logit(self.total(own, best, share - expected))
        evidence = {
            METHOD_SCORE: own[None],
            BEST_SENTENCE: best[None],
            BEST_SENTENCE_NUMBER: at[None],
            WORD_SHARE: share[None],
        }
        if self.boosts is not None:
            documents = view.documents(keys.tolist())
            added = np.array([self.boosts.total(document.metadata) for document in documents], np.float32)
            logit, evidence[BOOST] = logit + added, added[None]
        if matched is not None and matched.phrases:
            logit = np.where(share > 0, logit, -np.inf)
        evidence[EXPECTED_WORD_SHARE] = np.full((1, len(keys)), expected, np.float32)
        return Candidates(keys[None], logit[None].astype(np.float32), evidence=evidence)


def score_others(search: Execute, plan: SearchPlan, candidates: Candidates, keys: Keys) -> Candidates:
    """Add the method's scores of further documents (ascending keys) to one query's candidates.

    Documents that the method does not score (below a cut-off) get the lowest score of the candidates.
    """
    others = np.setdiff1d(keys, candidates.keys[0])
    if not len(others):
        return candidates
    more = search(plan.among(others), len(others)).one_query(0)
    lost = np.setdiff1d(others, more.keys[0])
    lowest = np.full(len(lost), candidates.scores.min() if candidates.scores.size else 0, np.float32)
    evidence = {}
    for name, array in candidates.evidence.items():
        rest = np.zeros((len(lost), *array.shape[2:]), array.dtype)
        evidence[name] = np.concatenate([array[0], more.evidence[name][0], rest])[None]
    return replace(
        candidates,
        keys=np.concatenate([candidates.keys[0], more.keys[0], lost])[None],
        scores=np.concatenate([candidates.scores[0], more.scores[0], lowest])[None],
        evidence=evidence,
    )


def best_sentences(sentences: Ragged, scales: Ragged, query: Floats) -> tuple[Floats, NDArray[np.int32]]:
    """Return cosine and number of each document's best sentence for a query [d]; NaN and −1 without sentences."""
    starts = sentences.starts
    best, at = np.full(len(starts) - 1, np.nan, np.float32), np.full(len(starts) - 1, -1, np.int32)
    # unlike a product of matrices, each row's sum is rounded alike among any other rows, so that scores agree
    products = np.einsum("sd,d->s", sentences.values.astype(np.float32), query)
    cosines = products * scales.values.astype(np.float32)
    with_sentences = np.flatnonzero(np.diff(starts))
    if len(with_sentences):
        tops = np.maximum.reduceat(cosines, starts[with_sentences])
        best[with_sentences] = tops
        document = np.repeat(np.arange(len(best)), np.diff(starts))
        first = np.flatnonzero(cosines == best[document])[::-1]
        at[document[first]] = first - starts[document[first]]
    return best, at


@lru_cache(64)
def noted_score_scales(text: str) -> ScoreScales:
    """Parse the score scales that an index has stored with its documents."""
    try:
        noted = parse_json(text)
        if not isinstance(noted, dict):
            raise ValueError(f"{shown(noted)} is no object")
        return ScoreScales.from_dict(noted)
    except (TypeError, ValueError) as error:
        raise CorruptIndexError(f"the note of an index's score scales is damaged ({error}); {REPAIR}") from error


def read_calibrations(facts: Mapping[str, Any]) -> dict[str, Calibration]:
    """Read the calibrations of a checkpoint."""
    return {name: Calibration.from_dict(value) for name, value in facts.get("evidence", {}).items()}
