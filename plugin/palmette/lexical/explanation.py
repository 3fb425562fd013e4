"""Words in an explanation, beside the method's own parts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from palmette.lexical.mix import Mix
from palmette.types import Explanation, Part

__all__ = ["mixed"]

SHOWN = 5
"""Words named in the text."""


def mixed(own: Explanation, words: Sequence[str], shares: Sequence[float], mix: Mix) -> Explanation:
    """A method's explanation and the words that matched, each weighted: parts add up to the hybrid score."""
    parts = [Part(part.name, (1 - mix.weight) * part.value, part.detail) for part in own.parts]
    worth = float(mix.worth(np.asarray(sum(shares))))
    added = {word: worth * share for word, share in zip(words, shares, strict=True) if share > 0}
    parts += [Part(f"word {word!r}", value, {"word": word}) for word, value in added.items()]
    score = (1 - mix.weight) * own.score + sum(added.values())
    best = sorted(added, key=lambda word: -added[word])[:SHOWN]
    listed = ", ".join(f"{word} (+{added[word]:.3f})" for word in best) + (
        ", …" if len(added) > SHOWN else ""
    )
    text = f"{own.text}; of that {1 - mix.weight:.0%}, and words in common: {listed or 'none'}"
    found = {"weight": mix.weight, "scale": mix.scale, "words": added}
    return Explanation(score, parts, text, {**own.detail, "lexical": found})
