"""Learns one space for all methods: linear maps of queries and of documents over a frozen encoder's vectors.

Labelled pairs teach two candidates: one map for both sides, and one map for each side. Held-out questions then choose
how far to move from the encoder's own space to the learned one. Staying with the encoder is one of the choices: a space
that does not clearly improve nDCG@10 is not used.

    maps = 1   q W, d W         W = I + learned change, by symmetric InfoNCE against random and nearest documents
    maps = 2   q W, d V
    choice     (1 − t) I + t W, t in ¼, ½, ¾, 1: the smallest t within one standard error of the best nDCG@10, if the
               best exceeds t = 0 by two standard errors

Fewer than 50 held-out questions are supplemented by cross-validation in four folds of the training questions.

Letters: Q queries, N documents, B batch, M documents of a batch, d width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from palmette.arrays import Rows
from palmette.data.retrieval import RowLists
from palmette.encoder.space import Space
from palmette.machine.cores import one_thread
from palmette.machine.progress import progress_bar
from palmette.training.maths import symmetric_info_nce
from palmette.training.pairs import TrainingPairs, Validation, top_documents

LEAST_STEPS = 150
"""Smallest number of optimiser steps."""
MOST_STEPS = 400
"""Largest number of optimiser steps."""
EPOCHS = 10
"""Passes over the questions, within these limits."""
QUESTIONS_PER_BATCH = 256
"""Number of questions in a batch."""
PEAK_RATE = 2e-3
"""Peak learning rate of Adam."""
WARMUP = 20
"""Steps of linear warm-up."""
INVERSE_TEMPERATURE = 20.0
"""Factor of cosines in the softmax (inverse temperature)."""
DECAY = 1e-2
"""Weight of the squared distance from the identity, per column."""
RANDOM = 1024
"""Number of random negatives in a batch."""
NEAREST_OF_A_QUESTION = 20
"""Number of nearest documents of a question; a batch contains one of them as a hard negative."""
INTERPOLATIONS = (0.25, 0.5, 0.75, 1.0)
"""Candidates for how far to move from the encoder's space (0) to the learned one (1)."""
ENOUGH_QUESTIONS = 50
"""Smallest number of judged questions to learn from, and of held-out questions without cross-validation."""
FOLDS = 4
"""Number of folds of the training questions in cross-validation."""
NEW = 0.25
"""Share of the judging questions that are about documents new to a space."""
LEFT_OUT_SHARE = 0.2
"""Share of the answered documents that :func:`learn_apart` leaves out."""
ERRORS = 2.0
"""Standard errors by which the best choice must exceed the encoder."""
TIE = 1.0
"""Standard errors within which a shorter interpolation counts as equally good."""


class Choice(NamedTuple):
    """Number of maps (1 for both sides, or 2; 0 is the encoder's space), and how far to interpolate towards them."""

    maps: int
    interpolation: float


class Apart(NamedTuple):
    """A space that some documents did not teach, and the questions about them.

    Attributes:
        space: The space.
        queries: Ids of the questions.
        share: Share of these questions among all that judge, so that ``NEW`` of all are about new documents.
    """

    space: Space
    queries: list[str]
    share: float


_Scores = dict[Choice, NDArray[np.float64]]
"""nDCG@10 of each held-out question, by choice."""
_ENCODER = Choice(0, 0.0)
"""The encoder's own space."""


def fit_space(
    pairs: TrainingPairs, *, seed: int = 0, progress: bool | None = None
) -> tuple[Space | None, dict[str, Any]]:
    """Learn a space from labelled pairs, as far as held-out questions gain from it.

    Returns the space, or ``None`` where the encoder's own is as good, and the facts of the choice.
    """
    # 1. Enough questions, or the encoder's own space; too few to judge by are judged in folds as well.
    questions = len(np.unique(pairs.query_rows))
    held_out = 0 if pairs.dev is None else len(pairs.dev.queries)
    if questions < FOLDS or questions + held_out < ENOUGH_QUESTIONS:
        return None, {}  # 30 pairs seemed to help on their own questions, and harmed others
    folds = FOLDS if held_out < ENOUGH_QUESTIONS else 0
    steps = 2 * (_steps(questions) + folds * _steps(questions - questions // FOLDS))
    shown: dict[str, Any] = {"desc": "Learning the space", "unit": "step", "delay": 1, "leave": False}
    with one_thread(), progress_bar(progress, total=steps, **shown) as bar:
        # 2. Both candidates: one map for both sides, and one map for each.
        near = nearest_documents(pairs)
        learned = {maps: learn_maps(pairs, near, maps, seed, bar) for maps in (1, 2)}
        # 3. nDCG@10 of every judging question, by candidate and by how far to move to it; the choice.
        scores = [] if pairs.dev is None else [_score(pairs, pairs.dev, learned)]
        if folds:
            scores += _score_folds(pairs, near, folds, seed, bar)
        table = {choice: np.concatenate([part[choice] for part in scores]) for choice in scores[0]}
        chosen = choose(table)
        # 4. What it gained, also where nothing is kept.
        quality = {
            name: round(float(table[choice].mean()), 6) for name, choice in (("encoder", _ENCODER), ("ndcg@10", chosen))
        }
        learned_best = max(float(values.mean()) for choice, values in table.items() if choice != _ENCODER)
        facts = {"questions": len(table[chosen]), "maps": chosen.maps, "way": chosen.interpolation, **quality}
        facts["gain"] = round(learned_best - quality["encoder"], 6)  # of the best map, also where none is kept
        if chosen == _ENCODER:
            return None, facts
        return _interpolated(learned[chosen.maps], chosen.interpolation), facts


def learn_apart(pairs: TrainingPairs, choice: Choice, *, seed: int = 0) -> Apart | None:
    """Learn the chosen space once more without a group of similar documents, whose questions show what new ones meet.

    Held-out questions often ask about documents that other questions have taught; a space ranks those best, and judged
    by them alone it gets too much weight beside words: on FairytaleQA nDCG@10 of questions about new stories fell from
    .697 to .663. Returns ``None`` where enough of the held-out questions are about new documents already.
    """
    # 1. Held-out questions about documents that no training question taught.
    taught = np.unique(pairs.document_rows)
    held_out = pairs.data.qrels.get("dev", {})
    known = {pairs.data.corpus[row].key for row in taught.tolist()}
    new = sum(known.isdisjoint(id for id, grade in judged.items() if grade > 0) for judged in held_out.values())
    if new >= NEW * len(held_out):
        return None
    # 2. A fifth of the taught documents, nearest to one drawn at random, and the questions about them.
    vectors = F.normalize(pairs.documents[torch.from_numpy(taught)])
    centre = vectors[int(np.random.default_rng(seed).integers(len(taught)))]
    group = taught[(vectors @ centre).topk(max(1, round(LEFT_OUT_SHARE * len(taught)))).indices.numpy()]
    rows = np.unique(pairs.query_rows[np.isin(pairs.document_rows, group)])
    if len(np.unique(pairs.query_rows)) - len(rows) < FOLDS:
        return None
    # 3. The space without these questions; they get the share that makes a quarter of all be about new documents.
    with one_thread():
        space = learn_maps(pairs, nearest_documents(pairs), choice.maps, seed, without=rows)
    ids = list(pairs.data.queries)
    share = 1 - (1 - NEW) * len(held_out) / (len(held_out) - new)
    return Apart(_interpolated(space, choice.interpolation), [ids[row] for row in rows.tolist()], share)


def _interpolated(space: Space, share: float) -> Space:
    """Return a space on the way from the encoder's (0) to this one (1)."""
    identity = torch.eye(len(space.queries))
    return Space(*(torch.lerp(identity, torch.from_numpy(weight), share).numpy() for weight in space.maps))


def choose(table: _Scores) -> Choice:
    """Return the shortest interpolation that is as good as the best; the encoder unless that is clearly better."""

    def gains(choice: Choice, other: Choice, errors: float) -> bool:
        gain = table[choice] - table[other]
        return bool(gain.mean() > errors * gain.std() / np.sqrt(len(gain)))

    best = max(table, key=lambda choice: table[choice].mean())
    if not gains(best, _ENCODER, ERRORS):
        return _ENCODER
    as_good = [choice for choice in table if choice != _ENCODER and not gains(best, choice, TIE)]
    return min(as_good, key=lambda choice: (choice.interpolation, choice.maps))


def nearest_documents(pairs: TrainingPairs) -> Rows:
    """Return the documents nearest to each training question in the encoder's space: [Q, ≤ NEAR]."""
    queries = pairs.queries[torch.from_numpy(np.unique(pairs.query_rows))]
    return top_documents(queries, pairs.documents, depth=NEAREST_OF_A_QUESTION)


def learn_maps(
    pairs: TrainingPairs, near: Rows, maps: int, seed: int = 0, bar: Any = None, without: Rows | None = None
) -> Space:
    """Learn maps by symmetric InfoNCE, starting from the identity.

    A batch holds different questions, each with one of its documents. Negatives are the other questions' documents,
    random documents, and for each question one of those nearest to it; known answers of a question are never its
    negatives.

    Args:
        pairs: Encoded training pairs.
        near: [Q, ≤ NEAR] nearest documents of each training question.
        maps: 1 for one map of both sides, 2 for one map each.
        seed: Seed of the batches.
        bar: Progress bar, advanced by one each step.
        without: Query rows to leave out, for cross-validation.
    """
    # 1. Each question's documents and near ones, without those of a fold.
    included = slice(None) if without is None else ~np.isin(pairs.query_rows, without)
    questions, place = np.unique(pairs.query_rows[included], return_inverse=True)
    answers = RowLists.of(place, pairs.document_rows[included], len(questions))
    near = near[np.searchsorted(np.unique(pairs.query_rows), questions)]
    # 2. Changes W − I begin at zero, so that training begins at the encoder's space.
    draw, count, width = np.random.default_rng(seed), len(pairs.data.corpus), pairs.documents.shape[1]
    changes = [torch.zeros(width, width, requires_grad=True) for _ in range(maps)]
    optimizer, identity, steps = torch.optim.Adam(changes, lr=PEAK_RATE), torch.eye(width), _steps(len(questions))
    for step in range(steps):
        # 3. The rate rises during the warm-up, and falls to a tenth.
        for group in optimizer.param_groups:
            group["lr"] = PEAK_RATE * min(1, (step + 1) / WARMUP) * (1 - 0.9 * step / steps)
        # 4. Different questions, a document of each, and negatives: random ones, and one near to each question.
        rows = draw.permutation(len(questions))[:QUESTIONS_PER_BATCH]
        own = answers.sample(rows, 1, draw)[:, 0]
        nearest = near[rows, draw.integers(0, near.shape[1], len(rows))]
        others = np.setdiff1d(np.concatenate([draw.integers(0, count, RANDOM), nearest]), own)
        # 5. InfoNCE, and the squared distance from the identity.
        loss = _batch_loss(pairs, questions[rows], own, others, identity + changes[0], identity + changes[-1])
        loss = loss + sum((DECAY / width * change.square().sum() for change in changes), torch.zeros(()))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        if bar is not None:
            bar.update(1)
    return Space(*((identity + change.detach()).numpy() for change in (changes[0], changes[-1])))


def _batch_loss(
    pairs: TrainingPairs, questions: Rows, own: Rows, others: Rows, query_map: Tensor, document_map: Tensor
) -> Tensor:
    """Return the symmetric InfoNCE loss of questions [B], each with a document of its own in ``own`` [B].

    Negatives are ``others`` [M − B] and the other questions' documents, except known answers.
    """
    texts = torch.from_numpy(np.concatenate([own, others]))  # [M]
    queries = F.normalize(pairs.queries[torch.from_numpy(questions)] @ query_map)  # [B, d]
    documents = F.normalize(pairs.documents[texts] @ document_map)  # [M, d]
    logits = INVERSE_TEMPERATURE * queries @ documents.T  # [B, M]
    known = torch.from_numpy(pairs.data.positives_mask(questions, texts.numpy()))  # [B, M] known answers
    size = len(questions)
    return symmetric_info_nce(logits[:, :size], known[:, :size], logits[:, size:], known[:, size:])


def _steps(questions: int) -> int:
    return max(LEAST_STEPS, min(MOST_STEPS, EPOCHS * questions // QUESTIONS_PER_BATCH))


def _score(pairs: TrainingPairs, held_out: Validation, spaces: Mapping[int, Space]) -> _Scores:
    """Return nDCG@10 of every choice on each held-out question."""
    queries = pairs.queries[torch.from_numpy(held_out.queries)]
    documents = pairs.documents[torch.from_numpy(held_out.documents)]
    table = {_ENCODER: held_out.each(top_documents(queries, documents))}
    for count, space in spaces.items():
        query_map, document_map = map(torch.from_numpy, space.maps)
        mapped_queries, mapped_documents = queries @ query_map, documents @ document_map
        for share in INTERPOLATIONS:
            query_vectors = F.normalize(torch.lerp(queries, mapped_queries, share))
            document_vectors = F.normalize(torch.lerp(documents, mapped_documents, share))
            table[Choice(count, share)] = held_out.each(top_documents(query_vectors, document_vectors))
    return table


def _score_folds(pairs: TrainingPairs, near: Rows, folds: int, seed: int, bar: Any) -> Iterator[_Scores]:
    """Cross-validate: score training questions by maps that were learned without them."""
    held_out = Validation.of(pairs.data, seed, split="train")
    if held_out is None:
        return
    held_out = held_out.with_nearest_documents(pairs.queries, pairs.documents)
    scored = held_out.queries[held_out.judgements.relevant > 0]
    for part in np.array_split(np.random.default_rng(seed).permutation(np.unique(pairs.query_rows)), folds):
        spaces = {maps: learn_maps(pairs, near, maps, seed, bar, part) for maps in (1, 2)}
        in_part = np.isin(scored, part)
        yield {choice: values[in_part] for choice, values in _score(pairs, held_out, spaces).items()}
