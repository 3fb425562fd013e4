"""One learned space for all methods: linear maps of queries and of documents over the vectors of a frozen encoder.

Labelled pairs teach one map for both, and one for each. How far to go, from the encoder's own space to the learned one,
is decided by held-out questions, and not at all is one of the choices: a space that does not clearly help is not used.

Letters: Q queries, N documents, B batch, M documents of a batch, d width.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from tqdm.auto import tqdm

from palmette.arrays import Floats, Rows
from palmette.data.retrieval import RowLists
from palmette.encoder.base import Encoder, Kind, Output, States, WrappedEncoder
from palmette.encoder.sentences import Sentences
from palmette.maths import symmetric_info_nce
from palmette.threads import one_torch_thread
from palmette.training.pairs import TrainingPairs, Validation, top_documents

WEIGHTS = "space."
"""Prefix of the maps' names in a checkpoint."""

STEPS, MOST_STEPS, EPOCHS = 150, 400, 10
"""Steps: so many times every question, within limits."""
BATCH, RATE, WARMUP = 256, 2e-3, 20
SCALE, DECAY = 20.0, 1e-2
"""Factor of cosines in the softmax; pull towards the identity."""
RANDOM, NEAR = 1024, 20
"""Wrong documents of a batch: so many at random, and for each question one of those nearest to it."""
WAYS = (0.25, 0.5, 0.75, 1.0)
"""Parts of the way from the encoder's space to the learned one."""
ENOUGH, FOLDS = 50, 4
"""Judged questions below which nothing is learned, and held-out questions that decide alone: with fewer of these,
training questions take turns at being held out."""
ERRORS, TIE = 2.0, 1.0
"""Standard errors by which the best choice must exceed the encoder, and within which a shorter way is as good."""


@dataclass(frozen=True)
class Space:
    """Linear maps, each followed by scaling to length 1."""

    queries: Tensor
    """[d, d]"""
    documents: Tensor
    """[d, d]"""

    def map(self, vectors: Tensor, kind: Kind) -> Tensor:
        """Map vectors [n, d]; in double precision (not every GPU has it), so that batches change no vector."""
        weight = self.queries if kind == "query" else self.documents
        mapped = F.normalize(vectors.cpu().double() @ weight.double(), dim=1)
        return mapped.float().to(vectors.device)

    @classmethod
    def take(cls, weights: dict[str, Tensor]) -> Self | None:
        """Take the maps out of a checkpoint's weights; ``None`` where there are none."""
        own = {name: weights.pop(name) for name in list(weights) if name.startswith(WEIGHTS)}
        return cls(own[f"{WEIGHTS}queries"], own[f"{WEIGHTS}documents"]) if own else None


class SpaceEncoder(WrappedEncoder):
    """Encoder with its pooled vectors in a learned space; token and layer states stay as they are.

    :attr:`plain` is the inner encoder, and a config is its config: a checkpoint keeps the maps among its weights.
    """

    def __init__(self, encoder: Encoder, space: Space) -> None:
        super().__init__(encoder)
        self.space, self.asymmetric = space, True
        digest = hashlib.sha256(encoder.fingerprint.encode())
        for weight in (space.queries, space.documents):
            digest.update(weight.cpu().contiguous().numpy().tobytes())
        self.fingerprint = digest.hexdigest()

    @property
    def plain(self) -> Encoder:  # noqa: D102
        return self.encoder.plain

    def map(self, vectors: Floats, kind: Kind) -> Floats:  # noqa: D102
        mapped: Floats = self.space.map(torch.from_numpy(np.array(vectors, np.float32)), kind).numpy()
        return mapped

    def _mapped(self, states: States, kind: Kind) -> States:
        return states if states.pooled is None else replace(states, pooled=self.space.map(states.pooled, kind))

    def forward(  # noqa: D102
        self, texts: Sequence[str], kind: Kind, outputs: frozenset[Output], depth: int | None = None
    ) -> States:
        return self._mapped(self.encoder.forward(texts, kind, outputs, *([] if depth is None else [depth])), kind)

    def iter_states(  # noqa: D102
        self, texts: Sequence[str], *, kind: Kind = "document", **options: Any
    ) -> Iterator[tuple[NDArray[np.int64], States]]:
        for rows, states in self.encoder.iter_states(texts, kind=kind, **options):
            yield rows, self._mapped(states, kind)

    def encode(self, texts: Sequence[str], *, kind: Kind = "document", **options: Any) -> Floats:  # noqa: D102
        return self.map(self.encoder.encode(texts, kind=kind, **options), kind)

    def encode_queries(self, texts: Sequence[str]) -> Floats:  # noqa: D102
        return self.map(self.encoder.encode_queries(texts), "query")

    def encode_sentences(self, texts: Sequence[str], **options: Any) -> tuple[Floats, Sentences]:
        """Return vectors of documents and of their sentences, both in the space."""
        vectors, found = self.encoder.encode_sentences(texts, **options)
        return self.map(vectors, "document"), self.map_sentences(found)

    def map_sentences(self, found: Sentences) -> Sentences:  # noqa: D102
        return Sentences.of(self.map(found.floats(), "document"), found.spans, found.starts)

    def space_weights(self) -> dict[str, Tensor]:  # noqa: D102
        return {f"{WEIGHTS}queries": self.space.queries, f"{WEIGHTS}documents": self.space.documents}


# -- learning -----------------------------------------------------------------------------------------------


class _Choice(NamedTuple):
    maps: int
    """1 for one map of both sides, 2 for one each."""
    way: float


_Scores = dict[_Choice, NDArray[np.float64]]
"""nDCG@10 by choice and held-out question."""
_ENCODER = _Choice(0, 0.0)


def fit_space(
    pairs: TrainingPairs, *, seed: int = 0, progress: bool | None = None
) -> tuple[Space | None, dict[str, Any]]:
    """Learn a space from labelled pairs, as far as held-out questions gain from it.

    Returns the space, or ``None`` where the encoder's own is as good, and the facts of the choice.
    """
    asked, held = len(np.unique(pairs.query_rows)), 0 if pairs.dev is None else len(pairs.dev.queries)
    if asked < FOLDS or asked + held < ENOUGH:
        return None, {}  # 30 pairs seemed to help on their own questions, and harmed others
    folds = FOLDS if held < ENOUGH else 0
    with one_torch_thread(), _bar(2 * (_steps(asked) + folds * _steps(asked - asked // FOLDS)), progress) as bar:
        near = nearest_documents(pairs)
        learned = {maps: learn_maps(pairs, near, maps, seed, bar) for maps in (1, 2)}
        scores = [] if pairs.dev is None else [_score(pairs, pairs.dev, learned)]
        if folds:
            scores += _score_folds(pairs, near, folds, seed, bar)
        table = {choice: np.concatenate([part[choice] for part in scores]) for choice in scores[0]}
        chosen = _choose(table)
        quality = {
            name: round(float(table[one].mean()), 6) for name, one in (("encoder", _ENCODER), ("ndcg@10", chosen))
        }
        facts = {"questions": len(table[chosen]), "maps": chosen.maps, "way": chosen.way, **quality}
        if chosen == _ENCODER:
            return None, facts
        eye, space = torch.eye(pairs.documents.shape[1]), learned[chosen.maps]
        ends = torch.lerp(eye, space.queries, chosen.way), torch.lerp(eye, space.documents, chosen.way)
        return Space(*ends), facts


def _choose(table: _Scores) -> _Choice:
    """Shortest way that is as good as the best choice; the encoder where that gains no more than noise."""

    def gains(choice: _Choice, other: _Choice, errors: float) -> bool:
        gain = table[choice] - table[other]
        return bool(gain.mean() > errors * gain.std() / np.sqrt(len(gain)))

    best = max(table, key=lambda choice: table[choice].mean())
    if not gains(best, _ENCODER, ERRORS):
        return _ENCODER
    as_good = [choice for choice in table if choice != _ENCODER and not gains(best, choice, TIE)]
    return min(as_good, key=lambda choice: (choice.way, choice.maps))


def nearest_documents(pairs: TrainingPairs) -> Rows:
    """Documents nearest to each training question in the encoder's space: [Q, ≤ NEAR]."""
    queries = pairs.queries[torch.from_numpy(np.unique(pairs.query_rows))]
    return top_documents(queries, pairs.documents, lambda q, d: q @ d.T, NEAR)


def learn_maps(
    pairs: TrainingPairs, near: Rows, maps: int, seed: int = 0, bar: Any = None, without: Rows | None = None
) -> Space:
    """Maps from the identity by symmetric InfoNCE; ``without`` leaves the pairs of some query rows out.

    A batch has different questions, each with one of its documents; further negatives are documents at random, and for
    each question one of those nearest to it. Other known answers of a question are no negatives.
    """
    kept = slice(None) if without is None else ~np.isin(pairs.query_rows, without)
    asked, place = np.unique(pairs.query_rows[kept], return_inverse=True)
    answers = RowLists.of(place, pairs.document_rows[kept], len(asked))
    draw, count, width = np.random.default_rng(seed), len(pairs.data.corpus), pairs.documents.shape[1]
    near = near[np.searchsorted(np.unique(pairs.query_rows), asked)]
    changes = [torch.zeros(width, width, requires_grad=True) for _ in range(maps)]
    optimizer, eye, steps = torch.optim.Adam(changes, lr=RATE), torch.eye(width), _steps(len(asked))
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1, (step + 1) / WARMUP) * (1 - 0.9 * step / steps)
        rows = draw.permutation(len(asked))[:BATCH]
        own = answers.sample(rows, 1, draw)[:, 0]
        nearest = near[rows, draw.integers(0, near.shape[1], len(rows))]
        others = np.setdiff1d(np.concatenate([draw.integers(0, count, RANDOM), nearest]), own)
        queries = _unit(pairs.queries[torch.from_numpy(asked[rows])] @ (eye + changes[0]))  # [B, d]
        texts = torch.from_numpy(np.concatenate([own, others]))
        documents = _unit(pairs.documents[texts] @ (eye + changes[-1]))  # [M, d]
        logits = SCALE * queries @ documents.T  # [B, M]
        known = torch.from_numpy(pairs.data.positives_mask(asked[rows], texts.numpy()))
        size = len(rows)
        loss = symmetric_info_nce(logits[:, :size], known[:, :size], logits[:, size:], known[:, size:])
        loss = loss + sum((DECAY / width * change.square().sum() for change in changes), torch.zeros(()))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        if bar is not None:
            bar.update(1)
    ends = [eye + change.detach() for change in changes]
    return Space(ends[0], ends[-1])


def _steps(questions: int) -> int:
    return max(STEPS, min(MOST_STEPS, EPOCHS * questions // BATCH))


def _score(pairs: TrainingPairs, held: Validation, spaces: Mapping[int, Space]) -> _Scores:
    """nDCG@10 of every choice by held-out question."""
    queries = pairs.queries[torch.from_numpy(held.queries)]
    documents = pairs.documents[torch.from_numpy(held.documents)]

    def each(q: Tensor, d: Tensor) -> NDArray[np.float64]:
        return held.each(top_documents(q, d, lambda a, b: a @ b.T))

    table = {_ENCODER: each(queries, documents)}
    for maps, space in spaces.items():
        ends = queries @ space.queries, documents @ space.documents
        for way in WAYS:
            mapped = torch.lerp(queries, ends[0], way), torch.lerp(documents, ends[1], way)
            table[_Choice(maps, way)] = each(_unit(mapped[0]), _unit(mapped[1]))
    return table


def _score_folds(pairs: TrainingPairs, near: Rows, folds: int, seed: int, bar: Any) -> Iterator[_Scores]:
    """Score training questions by maps that were learned without them."""
    held = Validation.of(pairs.data, seed, split="train")
    if held is None:
        return
    held = held.with_nearest_documents(pairs.queries, pairs.documents)
    answered = held.queries[held.judgements.relevant > 0]  # those that are scored
    for part in np.array_split(np.random.default_rng(seed).permutation(np.unique(pairs.query_rows)), folds):
        spaces = {maps: learn_maps(pairs, near, maps, seed, bar, part) for maps in (1, 2)}
        mine = np.isin(answered, part)
        yield {choice: values[mine] for choice, values in _score(pairs, held, spaces).items()}


def _unit(vectors: Tensor) -> Tensor:
    return F.normalize(vectors, dim=1)


def _bar(total: int, progress: bool | None) -> Any:
    hidden = None if progress is None else not progress
    return tqdm(total=total, desc="Learning the space", unit="step", delay=1, disable=hidden, leave=False)
