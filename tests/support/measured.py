"""Score scales that an index scores by."""

from typing import Any

from palmette import Index
from palmette.ranking.arrays import stores_sentences
from palmette.ranking.scales import SCORE_SCALES, score_scales_for
from palmette.ranking.score import ScoreScales, noted_score_scales


def score_scales_of(index: Index, options: Any) -> ScoreScales:
    """Return the units of a search with these validated options: noted with the documents, or measured."""
    with index.backend.read() as view:
        noted = noted_score_scales(view.note(SCORE_SCALES) or "")
        if not index.model.lexical_key(options):
            return noted
        score_scales = score_scales_for(index.model, options, view, stores_sentences(index.backend))
    return score_scales.replace(documents=noted.documents)
