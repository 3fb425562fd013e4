"""Vectors of sentences in int8, with their characters, from passes over whole texts.

Texts longer than a pass are read in windows of sentences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import Floats, Rows, quantise, to_numpy
from palmette.encoder.sentences.splitting import split_sentences
from palmette.encoder.states import like, sum_rows


@dataclass(frozen=True, eq=False)
class Sentences:
    """Sentences of N texts and their vectors; text i has rows ``starts[i]`` to ``starts[i + 1]``.

    Attributes:
        vectors: [S, d] int8; times its scale, each has unit length.
        scales: [S] float32.
        spans: [S, 2] int32, the first character and the one after the last.
        starts: [N + 1] int64.
    """

    vectors: NDArray[np.int8]
    scales: NDArray[np.float32]
    spans: NDArray[np.int32]
    starts: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self.starts) - 1

    def floats(self) -> NDArray[np.float32]:
        """Return unit vectors [S, d]."""
        return self.vectors * self.scales[:, None]

    @classmethod
    def of(cls, rows: NDArray[Any], spans: NDArray[np.int32], starts: NDArray[np.int64]) -> Self:
        """Round vectors of any length to int8, unless they are, and scale them to unit length."""
        vectors: NDArray[np.int8] = rows if rows.dtype == np.int8 else quantise(rows)[0]
        squares = np.einsum("sd,sd->s", vectors, vectors, dtype=np.int32)
        return cls(vectors, (1 / np.sqrt(np.maximum(squares, 1))).astype(np.float32), spans, starts)

    def parts(self) -> list[bytes]:
        """Return each text's spans and vectors as bytes."""
        ends = zip(self.starts[:-1].tolist(), self.starts[1:].tolist(), strict=True)
        return [self.spans[a:b].tobytes() + self.vectors[a:b].tobytes() for a, b in ends]

    @classmethod
    def from_parts(cls, parts: Sequence[bytes], width: int) -> Self:
        """Join what :meth:`parts` returned of texts, whose vectors have ``width`` columns."""
        counts = [len(part) // (8 + width) for part in parts]
        each = list(zip(parts, counts, strict=True))
        spans = np.frombuffer(b"".join(part[: 8 * count] for part, count in each), np.int32)
        vectors = np.frombuffer(b"".join(part[8 * count :] for part, count in each), np.int8)
        return cls.of(vectors.reshape(-1, width), spans.reshape(-1, 2), np.cumsum([0, *counts], dtype=np.int64))


def whole_texts(texts: Sequence[str], pooled: NDArray[np.float32]) -> Sentences:
    """Return each text as its only sentence, with its own vector; a blank one has none."""
    spans = [(len(text) - len(text.lstrip()), len(text.rstrip())) for text in texts if text.strip()]
    filled = np.array([bool(text.strip()) for text in texts], np.bool_)
    return Sentences.of(pooled[filled], np.array(spans, np.int32).reshape(-1, 2), np.append(0, np.cumsum(filled)))


class _Window(NamedTuple):
    """Sentences ``first:last`` of all, which are of one text, read in one pass over its characters ``begin:end``."""

    text: int
    first: int
    last: int
    begin: int
    end: int


def encode_sentences(
    encoder: Any,
    texts: Sequence[str],
    names: Sequence[int],
    size: int,
    done: Callable[[int], object],
    above: Sequence[str] = (),
) -> tuple[Floats, Sentences]:
    """Return pooled vectors of checked texts [N, d], and their sentences.

    The first passes read each text's beginning, and later ones windows of what those left. Every pass over a text first
    reads what stands above it, if that is given, and leaves it out of all means. Errors name a text by its number in
    ``names``; ``size`` is the texts per pass, and ``done`` takes the number of texts whose beginning was read.
    """
    # 1. Sentences of all texts in one numbering: text n has ``starts[n]:starts[n + 1]``. One window for each text.
    # What stands above a text is cut at its beginning, so that it fills but a part of a pass.
    heads = [" ".join(title.split())[-(encoder.max_length // 2) :] for title in above]
    heads = [f"{head}\n" if head else "" for head in heads] or [""] * len(texts)
    split = [split_sentences(text) for text in texts]
    spans = np.array([span for each in split for span in each], np.int32).reshape(-1, 2)
    starts = np.cumsum([0, *map(len, split)], dtype=np.int64)
    pooled = np.empty((len(texts), encoder.dimension), np.float32)
    vectors = np.zeros((len(spans), encoder.dimension), np.int8)
    windows = []
    for row, (text, sentences) in enumerate(zip(texts, split, strict=True)):
        begin = sentences[0][0] if sentences and len(text) > encoder.longest else 0
        first, last = starts[row : row + 2].tolist()
        windows.append(_Window(row, first, last, begin, len(text)))
    # 2. Read the windows; the sentences that a pass does not reach are the windows of the next round.
    outputs, beginnings = frozenset({"pooled", "tokens"}), True
    while windows:
        unread: list[_Window] = []
        pieces = [heads[w.text] + texts[w.text][w.begin : w.end][: encoder.longest] for w in windows]
        numbers = [names[w.text] for w in windows]
        for batch, states in encoder.iter_batches(pieces, "document", outputs, size, numbers):
            states = _without_heads(encoder, states, [len(heads[windows[row].text]) for row in batch])
            reaches = states.offsets.max(axis=(1, 2), initial=0).tolist()
            read = []
            for window, reach in zip(map(windows.__getitem__, batch), reaches, strict=True):
                last = _last_read(window, texts[window.text], spans, reach)
                unread += _rest(window._replace(first=last), spans, reach)
                read.append(window._replace(last=last))
            # 3. A sentence is the mean of its tokens; a text is what the encoder makes of its beginning.
            rows, means = _means(encoder, read, states, spans)
            vectors[rows] = quantise(means)[0]
            if beginnings:
                pooled[[window.text for window in read]] = to_numpy(states.pooled)
                done(len(batch))
        windows, beginnings = unread, False
    return pooled, Sentences.of(vectors, spans, starts)


def _without_heads(encoder: Any, states: Any, lengths: Sequence[int]) -> Any:
    """Return the states of passes without the tokens of their first characters; offsets count from what follows."""
    if not any(lengths):
        return states
    shift = np.array(lengths)[:, None]  # [B, 1]
    first, last = states.offsets[..., 0], states.offsets[..., 1]  # [B, T]
    mask = states.mask & like(~((first < last) & (last <= shift)), states.mask)
    offsets = np.maximum(states.offsets - shift[..., None], 0)
    return replace(states, pooled=encoder.pool(states.tokens, mask), mask=mask, offsets=offsets)


def _last_read(window: _Window, text: str, spans: NDArray[np.int32], reach: int) -> int:
    """Return the sentence after the last one that a pass has read whole, up to its character ``reach``.

    The window's first sentence is taken even if it is longer than a pass; a tokenizer may drop marks at the end.
    """
    ends = spans[window.first : window.last, 1]
    last = window.first + int(np.searchsorted(ends, window.begin + reach, "right"))
    while last < window.last and not any(map(str.isalnum, text[window.begin + reach : spans[last, 1]])):
        last += 1
    return min(window.last, max(last, window.first + 1))


def _rest(window: _Window, spans: NDArray[np.int32], reach: int) -> Iterator[_Window]:
    """Divide sentences into windows of near equal length, each shorter than the characters of a full pass."""
    first, last = window.first, window.last
    if first == last:
        return
    begin = int(spans[first, 0])
    length = int(spans[last - 1, 1]) - begin
    count = -(-length // max(1, int(0.9 * reach)))
    part = (spans[first:last, 1].astype(np.int64) - begin - 1) * count // length
    for a, b in pairwise([first, *(first + 1 + np.flatnonzero(np.diff(part))).tolist(), last]):
        yield _Window(window.text, a, b, int(spans[a, 0]), int(spans[b - 1, 1]))


def _means(encoder: Any, windows: Sequence[_Window], states: Any, spans: NDArray[np.int32]) -> tuple[Rows, Floats]:
    """Return the numbers of a batch's sentences [S], and the mean states of their tokens, finished: [S, d].

    A token belongs to the sentence where its last character is; a sentence without tokens has its window's vector.
    """
    counts = [window.last - window.first for window in windows]
    rows = np.concatenate([np.arange(window.first, window.last) for window in windows])
    owner = np.repeat(np.arange(len(windows)), counts)  # [S], the window of a sentence
    # Characters of all windows in one numbering, those of each apart from the others'.
    gap = max(window.end - window.begin for window in windows) + 1
    shift = np.arange(len(windows)) * gap
    begins = np.array([window.begin for window in windows])
    first, last = (spans[rows].astype(np.int64) + (shift - begins)[owner][:, None]).T
    ends = states.offsets[..., 1] + shift[:, None]  # [B, T]
    sentence = np.searchsorted(last, ends)  # [B, T]
    inside = np.append(first, np.iinfo(np.int64).max)[sentence] < ends
    counted = inside & (states.offsets[..., 0] < states.offsets[..., 1])
    tokens = states.tokens[like(counted, states.tokens)]  # [Σ T, w]
    number = np.bincount(sentence[counted], minlength=len(rows))[:, None]  # [S, 1]
    sums = sum_rows(tokens, sentence[counted], len(rows))
    means = encoder.finish(sums / like(np.maximum(number, 1).astype(np.float32), sums))
    return rows, np.where(number > 0, to_numpy(means), to_numpy(states.pooled)[owner])
