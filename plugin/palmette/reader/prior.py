"""What speaks for a passage before its words are weighed: learned on held-out questions, when the network is done.

The network reads every passage by itself, and among many there is always one that makes it sure of wrong words: the
more passages, the worse its answers. Retrieval knows which ones fit the question, so all spans of passage p score

    s(span) + w · x(p) + b,    x(p) = (similarity of passage and question, share of the question's words in it)

before they share one softmax with "no answer". A passage's log-odds do not depend on what else is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from palmette.encoder.recent import Recent
from palmette.lexical.tokens import LANGUAGE, analyser_of
from palmette.reader.scores import NEVER, grouped_logsumexp

__all__ = ["Prior", "described", "learn", "unit", "words_of"]

SIGNS = 2
PULL = 0.05
"""How strongly w is held near 0, and b near where an average passage gains nothing, beside the sum over the questions:
a handful of them says little."""

Floats = NDArray[np.float32]


class Prior(nn.Module):
    """[P, 2] what is known of passages → [P] what is added to the scores of their spans; 0 until it has learned."""

    def __init__(self) -> None:
        super().__init__()
        self.weigh = nn.Linear(SIGNS, 1).requires_grad_(False)
        nn.init.zeros_(self.weigh.weight)
        nn.init.zeros_(self.weigh.bias)

    @property
    def silent(self) -> bool:
        """Whether it adds nothing."""
        return not any(bool(value.any()) for value in self.parameters())

    def forward(self, signs: Tensor) -> Tensor:
        """See the class."""
        added: Tensor = self.weigh(signs).squeeze(-1)
        return added


def described(
    encoder: Recent,
    questions: Sequence[str],
    passages: Sequence[Sequence[str]],
    progress: bool | None = False,
) -> list[Floats]:
    """[P, 2] of each question's passages; every text is encoded once."""
    texts = list(dict.fromkeys(text for some in passages for text in some if text.strip()))
    if not texts:
        return [np.zeros((len(some), SIGNS), np.float32) for some in passages]
    vectors = dict(zip(texts, unit(encoder.encode(texts, progress=progress)), strict=True))
    words = {text: words_of(text) for text in texts}
    found = []
    for question, query, some in zip(
        questions, unit(encoder.encode_queries(questions)), passages, strict=True
    ):
        asked = words_of(question)
        signs = np.zeros((len(some), SIGNS), np.float32)
        for place, text in enumerate(some):
            if text in vectors:
                signs[place] = vectors[text] @ query, len(asked & words[text]) / max(1, len(asked))
        found.append(signs)
    return found


def learn(
    prior: Prior,
    totals: Sequence[NDArray[np.float64]],
    signs: Sequence[Floats],
    right: Sequence[NDArray[np.bool_]],
) -> None:
    """Find w, under which right passages are most probable among those of their question, and then b.

    Found together, questions without an answer, whose passages look as right as any, would talk w down.

    Args:
        prior: What learns, in place.
        totals: Of each question, [P] log Σ exp of the scores of a passage's spans.
        signs: [P, 2] what is known of them.
        right: [P] which of them answer it.
    """
    if not totals:
        return
    device = prior.weigh.weight.device
    base, known, marks = (
        torch.from_numpy(np.concatenate(some)).to(device) for some in (totals, signs, right)
    )
    count = len(totals)
    owner = torch.from_numpy(np.repeat(np.arange(count), [len(some) for some in totals])).to(device)

    def sums() -> tuple[Tensor, Tensor]:
        """[Q] log Σ exp of a question's passages, and of the right ones."""
        scores = base.float() + prior(known)  # [P of all questions]
        hit = grouped_logsumexp(scores.masked_fill(~marks, NEVER), owner, count)
        return grouped_logsumexp(scores, owner, count), hit

    def chosen() -> Tensor:
        every, hit = sums()
        return torch.where(hit > NEVER / 2, every - hit, 0.0).sum() + PULL * prior.weigh.weight.square().sum()

    def answered() -> Tensor:
        every, hit = sums()
        every = torch.logaddexp(every, torch.zeros_like(every))  # "no answer" scores 0
        gained = (prior.weigh.bias + middle).square().sum()
        return (every - torch.where(hit > NEVER / 2, hit, 0.0)).sum() + PULL * gained

    _minimise(prior.weigh.weight, chosen)
    middle = prior.weigh.weight @ known.mean(0)  # w · x of an average passage
    _minimise(prior.weigh.bias, answered)


def _minimise(weights: Tensor, loss: Callable[[], Tensor]) -> None:
    search: Any = torch.optim.LBFGS(
        [weights.requires_grad_(True)], max_iter=100, line_search_fn="strong_wolfe"
    )

    def step() -> Tensor:
        search.zero_grad()
        value = loss()
        torch.autograd.backward(value)
        return value

    with torch.enable_grad():
        search.step(step)
    weights.requires_grad_(False).grad = None


def unit(vectors: Floats) -> Floats:
    """Rows of length 1."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: Floats = vectors / np.maximum(lengths, 1e-12)
    return scaled


def words_of(text: str) -> set[str]:
    """The different words of a text."""
    return {word.text for word in analyser_of(LANGUAGE).words(text)}
