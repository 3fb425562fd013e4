"""Reasons of a hit: the parts of its log-odds, and one sentence about them.

prior −3.9 + document +2.1 + best sentence +2.6 + word 'owl' +0.9 + boost 'date' +0.5 = log-odds 2.2 → 90 %
"Close in meaning: “Owls hunt at night.”; words in common: “owl” (3 of 2,000 documents)"
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from palmette.lexical.analyser import Analyser, WordKind
from palmette.machine.text import shorten
from palmette.ranking.score import BEST_SENTENCE, EXPECTED_WORD_SHARE, METHOD_SCORE, SPAN, Evidence, probability
from palmette.ranking.second_stage import RERANK, RERANK_SCORE
from palmette.search.plan import WordMatches
from palmette.types import Document, Explanation, Metadata, Part

WORDS_SHOWN = 5
"""Largest number of common words in an explanation's text."""
SENTENCE_SHOWN = 160
"""Characters of the best sentence in an explanation's text."""
CLOSENESS = ((1.1, "very close"), (0.8, "close"), (0.55, "related"), (-np.inf, "hardly related"))
"""Smallest meaning, in score scales, for each phrase."""
_MARKS = re.compile(r"(?<!\S)(?:[#|*~]+|`{3}\w*|[=_-]{3,})(?!\S)")
"""Marks of headings, tables, rules and code fences."""


def explain(
    evidence: Evidence,
    own: Explanation,
    document: Document,
    facts: Mapping[str, Any],
    matched: WordMatches | None,
    spelled: Mapping[str, str],
    counted: str = "documents",
) -> Explanation:
    """Explain a score by parts that add up to its log-odds, and by a sentence.

    Args:
        evidence: Coefficients of the search.
        own: The method's explanation of its own score.
        document: The hit.
        facts: Evidence of the hit, by name.
        matched: What each word of the query adds, where words count.
        spelled: Spelling of each word in the query.
        counted: What word frequencies count: ``"documents"`` or ``"passages"``.
    """
    score_scales, slope = evidence.score_scales, evidence.calibration.slope
    has_sentence = score_scales.sentence is not None and not np.isnan(facts[BEST_SENTENCE])
    meaning = [float(score_scales.method.apply(facts[METHOD_SCORE]))]
    quoted, details = "", list[Metadata]([{"score": float(facts[METHOD_SCORE])}])
    if score_scales.sentence is not None and has_sentence:
        start, end = facts[SPAN]
        sentence = document.content[start:end]
        meaning.append(float(score_scales.sentence.apply(facts[BEST_SENTENCE])))
        details.append({"text": sentence, "start": start, "end": end, "cosine": float(facts[BEST_SENTENCE])})
        quoted = f": \u201c{shorten(_MARKS.sub('', sentence), SENTENCE_SHOWN)}\u201d"
    weight = slope * (1 - evidence.calibration.words) / len(meaning)
    parts = [Part("prior", evidence.calibration.prior_among(score_scales.documents))]
    for name, value, detail in zip(("document", "best sentence"), meaning, details, strict=False):
        parts.append(Part(name, weight * value, detail))
    said = [f"{next(phrase for least, phrase in CLOSENESS if np.mean(meaning) >= least)} in meaning{quoted}"]
    if matched is not None and matched.parts is not None:
        weight = slope * evidence.calibration.words
        parts.append(Part("common words", -weight * float(facts[EXPECTED_WORD_SHARE])))
        shares = zip(matched.words, matched.parts.tolist(), strict=True)
        parts += [Part(f"word {word!r}", weight * share, {"word": word}) for word, share in shares if share > 0]
        said.append(words_in_common(matched, spelled, counted))
    boosted = [] if evidence.boosts is None else evidence.boosts.parts(document.metadata)
    parts += boosted
    said += [f"boost by {part.detail['boost']} ({part.detail['value']})" for part in boosted]
    added = float(facts.get(RERANK, np.nan))
    if evidence.second is not None and not np.isnan(added):
        model, own_score = evidence.second.reranker.name, float(facts[RERANK_SCORE])
        parts.append(Part("reranker", added, {"model": model, "score": None if np.isnan(own_score) else own_score}))
        if abs(added) >= 0.05:
            said.append(f"reranker {added:+.1f}".replace("-", "\u2212"))
    logit = sum(part.value for part in parts)
    text = "; ".join([*said, own.brief]) if own.brief else "; ".join(said)
    facts = {"logit": logit, "calibration": evidence.calibration.source}
    return Explanation(float(probability(np.asarray(logit))), parts, text[:1].upper() + text[1:], facts, own)


def words_in_common(matched: WordMatches, spelled: Mapping[str, str], counted: str) -> str:
    """Name the words that a document shares with a query, rarest first, and neighbours as one phrase."""
    common = [] if matched.parts is None else np.flatnonzero(matched.parts > 0).tolist()
    paired = {word for at in common if " " in matched.words[at] for word in matched.words[at].split()}
    frequencies = matched.document_frequencies or [0] * len(matched.words)
    total = f" of {matched.documents:,} {counted}"
    shown: list[str] = []
    for at in sorted(common, key=frequencies.__getitem__):
        if matched.words[at] not in paired:
            word = matched.words[at]
            word = spelled.get(word) or " ".join(spelled.get(part, part) for part in word.split())
            count = f" ({frequencies[at]:,}{'' if shown else total})" if frequencies[at] else ""
            shown.append(f"\u201c{word}\u201d{count}")
    more = ", \u2026" if len(shown) > WORDS_SHOWN else ""
    return f"words in common: {', '.join(shown[:WORDS_SHOWN])}{more}" if shown else "no words in common"


def spell(analyser: Analyser, text: str) -> dict[str, str]:
    """Return the spelling of each word in a query, and of each pair, with dots for words left out between them."""
    chunks = [(chunk.lower(), list(analyser.words_of_chunk(chunk))) for chunk in analyser.chunks(text)]
    single_words = [(at, chunk, words[0]) for at, (chunk, words) in enumerate(chunks) if len(words) == 1]
    spelled = {word.text: chunk for _, chunk, word in single_words}
    linked = [entry for entry in single_words if entry[2].kind == WordKind.WORD]
    for (at, chunk, word), (after, other, follower) in pairwise(linked):
        dots = "\u2026 " if after > at + 1 else ""
        spelled[f"{word.text} {follower.text}"] = f"{chunk} {dots}{other}"
    return spelled
