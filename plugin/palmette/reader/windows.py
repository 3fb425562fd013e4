"""Question and passage as pairs of token sequences: windows whose tokens know their characters."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from palmette.encoder.base import readable
from palmette.reader.config import ReaderConfig

__all__ = ["Batch", "Pairs", "Window", "batch_of", "by_length"]


@dataclass(frozen=True)
class Window:
    """A question and a part of a passage, as T tokens.

    Attributes:
        passage: The passage's position among those read.
        ids: [T] tokens.
        types: [T] 0 for the question, 1 for the passage.
        offsets: [T, 2] characters of the passage that a token covers; 0, 0 for other tokens.
        words: [T] the passage's word that a token belongs to; −1 for other tokens.
        starts: [T] whether an answer may start here: the first token of a word of the passage that no later window has
            more room for.
        ends: [T] whether an answer may end here: the last token of a word.
    """

    passage: int
    ids: list[int]
    types: list[int]
    offsets: NDArray[np.int64]
    words: NDArray[np.int64]
    starts: NDArray[np.bool_]
    ends: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.ids)

    def gold(self, spans: Sequence[tuple[int, int]], longest: int) -> list[tuple[int, int]]:
        """First and last tokens of spans of characters, widened to whole words; those that this window has."""
        found = []
        for start, end in spans:
            covered = np.flatnonzero((self.offsets[:, 1] > start) & (self.offsets[:, 0] < end))
            if not len(covered) or self.offsets[covered[0], 0] > start or self.offsets[covered[-1], 1] < end:
                continue
            first = int(np.flatnonzero(self.words == self.words[covered[0]])[0])
            last = int(np.flatnonzero(self.words == self.words[covered[-1]])[-1])
            if self.starts[first] and self.ends[last] and last - first < longest:
                found.append((first, last))
        return found


class Batch(NamedTuple):
    """Windows padded to one length: W windows of T tokens."""

    ids: Tensor
    types: Tensor
    mask: Tensor
    starts: Tensor
    ends: Tensor


class Pairs:
    """Makes windows of questions and passages; safe for several threads."""

    def __init__(self, tokenizer: Any, config: ReaderConfig) -> None:
        self.tokenizer, self.config = tokenizer, config
        self._lock = threading.Lock()  # a fast tokenizer keeps its truncation as state

    @property
    def padding(self) -> int:
        """The token that fills up a batch."""
        return int(self.tokenizer.pad_token_id)

    def windows(self, question: str, passages: Sequence[str]) -> list[Window]:
        """All windows of some passages, in their order; a blank passage has none."""
        question, passages = readable(question), [readable(text) for text in passages]
        filled = [place for place, text in enumerate(passages) if text.strip()]
        if not filled:
            return []
        config = self.config
        with self._lock:
            question = self._shortened(question)
            found = self.tokenizer(
                [question] * len(filled),
                [passages[place] for place in filled],
                truncation="only_second",
                max_length=config.max_length,
                stride=config.overlap,
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
                return_token_type_ids=True,
            )
        owner = found["overflow_to_sample_mapping"]
        return [
            self._window(
                found,
                at,
                filled[sample],
                first=not at or owner[at - 1] != sample,
                more=at + 1 < len(owner) and owner[at + 1] == sample,
            )
            for at, sample in enumerate(owner)
        ]

    def _shortened(self, question: str) -> str:
        offsets = self.tokenizer(
            question, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )["offset_mapping"]
        most = self.config.max_question
        return question if len(offsets) <= most else question[: offsets[most - 1][1]]

    def _window(self, found: Any, at: int, passage: int, *, first: bool, more: bool) -> Window:
        offsets = np.array(found["offset_mapping"][at], np.int64).reshape(-1, 2)
        sides = [side == 1 for side in found.sequence_ids(at)]
        words = np.array([-1 if word is None else word for word in found.word_ids(at)], np.int64)
        inside = np.array(sides) & (offsets[:, 1] > offsets[:, 0])
        words[~inside] = -1
        starts = inside & (words != np.concatenate([[-1], words[:-1]]))
        ends = inside & (words != np.concatenate([words[1:], [-1]]))
        covered = np.flatnonzero(inside)
        if more:  # what the next window has too starts there, where it is whole
            starts[covered[-self.config.overlap :]] = False
        if not first and len(covered):  # a window may open within a word, which the one before has whole
            earliest = found.word_to_chars(at - 1, int(words[covered[0]]), 1).start
            starts[covered[0]] &= bool(offsets[covered[0], 0] <= earliest)
        ids, types = found["input_ids"][at], found["token_type_ids"][at]
        return Window(passage, ids, types, np.where(inside[:, None], offsets, 0), words, starts, ends)


def by_length(windows: Sequence[Window], tokens: int) -> list[list[int]]:
    """Positions of windows of similar length, together about as many ``tokens`` as one pass should take."""
    groups: list[list[int]] = []
    for at in sorted(range(len(windows)), key=lambda at: -len(windows[at])):
        if groups and (len(groups[-1]) + 1) * len(windows[groups[-1][0]]) <= tokens:
            groups[-1].append(at)
        else:
            groups.append([at])
    return groups


def batch_of(windows: Sequence[Window], padding: int, device: torch.device) -> Batch:
    """Pad windows to the longest."""
    shape = len(windows), max(map(len, windows))
    ids = np.full(shape, padding, np.int64)
    types, mask = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    starts, ends = np.zeros(shape, bool), np.zeros(shape, bool)
    for row, window in enumerate(windows):
        size = len(window)
        ids[row, :size], types[row, :size], mask[row, :size] = window.ids, window.types, 1
        starts[row, :size], ends[row, :size] = window.starts, window.ends
    return Batch(*(torch.from_numpy(array).to(device) for array in (ids, types, mask, starts, ends)))
