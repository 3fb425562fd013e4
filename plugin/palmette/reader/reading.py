"""From scores to answers: all candidates of all passages in one softmax, equal answers taken together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from tqdm import tqdm

from palmette.data.synthetic import sentences
from palmette.encoder import Encoder
from palmette.encoder.base import readable
from palmette.encoder.device import auto_precision
from palmette.errors import CheckpointError
from palmette.metrics import normalise
from palmette.reader.answer import Answer, Support
from palmette.reader.config import ReaderConfig
from palmette.reader.scores import NEVER
from palmette.reader.windows import Pairs, Window, batch_of, by_length
from palmette.training import Task, TrainingConfig
from palmette.types import Document

if TYPE_CHECKING:
    from palmette.reader.lessons import Lessons
    from palmette.reader.module import SpanModule

__all__ = ["Candidates", "Reading", "Seen", "answer_of", "read"]

KEEP = 20
"""Candidates looked at in each window; what is beyond them hardly has any probability."""
TOKENS = 2048
"""Tokens of a pass; on a CPU it then stays in the cache, on a GPU it is sixteen times as many."""
BLOCK = 64
"""Questions tokenised at a time."""
ALTERNATIVES = 3

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Candidates:
    """What may answer one question: C places, and their probabilities beside that of "no answer".

    Attributes:
        passages: [C] positions of passages.
        starts: [C] first characters.
        ends: [C] characters after the last.
        shares: [C] probabilities; with ``none`` and all that was not kept they add up to 1.
        none: The probability of "no answer".
    """

    passages: Rows
    starts: Rows
    ends: Rows
    shares: NDArray[np.float64]
    none: float


class Reading(ABC):
    """One way to find candidates: its network, and what trains it."""

    training: ClassVar[type[TrainingConfig]]
    module: nn.Module

    @abstractmethod
    def __init__(self, config: ReaderConfig, encoder: Encoder) -> None: ...

    @abstractmethod
    def task(self, lessons: Lessons, progress: bool | None) -> Task:
        """What trains the module in place; its validation gives a ``threshold`` too."""

    @abstractmethod
    def candidates(self, questions: Sequence[str], passages: Sequence[Sequence[str]]) -> list[Candidates]:
        """For each question, what may answer it in its passages."""

    def kept(self) -> dict[str, Tensor]:
        """The weights that a checkpoint keeps."""
        return self.module.state_dict()

    def settle(self, lessons: Lessons, progress: bool | None) -> dict[str, float]:
        """Learn, when training is done, what only held-out questions can tell; returns metrics that changed by it."""
        return {}

    def load(self, tensors: Mapping[str, Tensor], where: str) -> None:
        """Take in those weights."""
        missing = sorted(self.kept().keys() ^ tensors.keys())
        try:
            self.module.load_state_dict(dict(tensors), strict=False)
        except RuntimeError as error:
            raise CheckpointError(f"{where}: weights do not fit the config ({error})") from error
        if missing:
            raise CheckpointError(
                f"{where}: weights do not fit the config ({missing[0]} is on one side only)"
            )


class Seen(NamedTuple):
    """What a network makes of one question's W windows.

    Attributes:
        windows: They.
        totals: [W] log Σ exp of the scores of all spans.
        kept: Of each window, the scores [C] and the first and last tokens [C, 2] of the best.
    """

    windows: Sequence[Window]
    totals: NDArray[np.float64]
    kept: Sequence[tuple[NDArray[np.float64], Rows]]

    def sums(self, passages: int) -> NDArray[np.float64]:
        """[P] log Σ exp of each passage; one without a window has none."""
        sums = np.full(passages, NEVER)
        np.logaddexp.at(sums, np.array([window.passage for window in self.windows], np.int64), self.totals)
        return sums

    def candidates(self, offsets: NDArray[np.float64] | None = None) -> Candidates:
        """All that was kept, the most probable first; ``offsets`` [P] are added to the scores of a passage's spans."""
        more = [0.0 if offsets is None else float(offsets[window.passage]) for window in self.windows]
        total = float(np.logaddexp.reduce([0.0, *(self.totals + more)]))  # "no answer" scores 0
        found = [
            (window.passage, window.offsets[first, 0], window.offsets[last, 1], score + extra)
            for window, (scores, spans), extra in zip(self.windows, self.kept, more, strict=True)
            for score, (first, last) in zip(scores, spans, strict=True)
            if score > NEVER / 2
        ]
        columns = np.array(found, np.float64).reshape(-1, 4)
        order = np.argsort(-columns[:, 3], kind="stable")
        passages, starts, ends = columns[order, :3].astype(np.int64).T
        return Candidates(passages, starts, ends, np.exp(columns[order, 3] - total), float(np.exp(-total)))


def read(
    module: SpanModule, pairs: Pairs, questions: Sequence[str], passages: Sequence[Sequence[str]]
) -> list[Seen]:
    """What the network makes of each question's passages."""
    found: list[Seen] = []
    for start in tqdm(
        range(0, len(questions), BLOCK), desc="reading", unit="block", delay=2, leave=False, disable=None
    ):
        part = slice(start, start + BLOCK)
        windows = [pairs.windows(q, texts) for q, texts in zip(questions[part], passages[part], strict=True)]
        found += read_windows(module, windows, pairs.padding)
    return found


def read_windows(module: SpanModule, windows: Sequence[Sequence[Window]], padding: int) -> list[Seen]:
    """The same of windows; no gradients."""
    flat = [window for some in windows for window in some]
    owner = np.repeat(np.arange(len(windows)), [len(some) for some in windows])
    totals = np.zeros(len(flat))
    kept: list[tuple[NDArray[np.float64], Rows]] = [(np.empty(0), np.empty((0, 2), np.int64))] * len(flat)
    device = module.device
    half = auto_precision(device) == "bfloat16"
    with torch.inference_mode(), torch.autocast(device.type, dtype=torch.bfloat16, enabled=half):
        for group in by_length(flat, TOKENS * (16 if device.type == "cuda" else 1)):
            scores = module(batch_of([flat[at] for at in group], padding, device))  # [W, T, L]
            longest = scores.shape[2]
            every = scores.flatten(1)  # [W, T · L]
            best = every.topk(min(KEEP, every.shape[1]), dim=1)
            totals[group] = every.logsumexp(1).cpu().numpy()
            for at, values, places in zip(
                group, best.values.cpu().numpy(), best.indices.cpu().numpy(), strict=True
            ):
                kept[at] = values, np.stack([places // longest, places // longest + places % longest], 1)
    return [
        Seen(some, totals[rows], [kept[at] for at in rows])
        for some, rows in (
            (windows[question], np.flatnonzero(owner == question)) for question in range(len(windows))
        )
    ]


def answer_of(
    question: str, candidates: Candidates, documents: Sequence[Document], threshold: float
) -> Answer:
    """The most probable answer; none where the probability that there is one is below the threshold."""
    texts = [
        documents[passage].content[start:end]
        for passage, start, end in zip(
            candidates.passages.tolist(), candidates.starts.tolist(), candidates.ends.tolist(), strict=True
        )
    ]
    groups: dict[str, list[int]] = {}  # by what is said, the most probable place first
    for at, text in enumerate(texts):
        if said := normalise(readable(text)):  # as the model read it: half an emoji says nothing
            groups.setdefault(said, []).append(at)
    shares = {said: float(candidates.shares[rows].sum()) for said, rows in groups.items()}
    ranked = sorted(groups, key=lambda said: -shares[said])
    none = candidates.none
    given = ranked[:1] if 1 - none >= threshold else []
    others = {texts[groups[said][0]]: shares[said] for said in ranked[len(given) :][:ALTERNATIVES]}
    if not given:
        return Answer(question, confidence=none, alternatives=others, no_answer=none)
    rows = groups[given[0]]
    supports = _supports(candidates, rows, documents)
    return Answer(question, texts[rows[0]], shares[given[0]], supports, others, none)


def _supports(
    candidates: Candidates, rows: Sequence[int], documents: Sequence[Document]
) -> tuple[Support, ...]:
    """The passages that say an answer, each at its most probable place, the strongest first."""
    places: dict[int, list[int]] = {}
    for at in rows:
        places.setdefault(int(candidates.passages[at]), []).append(at)
    found = []
    for passage, held in places.items():
        start, end = int(candidates.starts[held[0]]), int(candidates.ends[held[0]])
        share = float(candidates.shares[held].sum())
        content = documents[passage].content
        found.append(
            Support(passage, documents[passage], start, end, share, sentence_of(content, start, end))
        )
    return tuple(sorted(found, key=lambda support: -support.share))


def sentence_of(text: str, start: int, end: int) -> str:
    """The sentence, or the sentences, that the characters are in."""
    around = [(first, last) for first, last in sentences(text) if first < end and last > start]
    return text[around[0][0] : around[-1][1]].strip() if around else text[start:end]
