"""Sentences encoded by themselves, for encoders that give one vector a text."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from palmette.arrays import Floats
from palmette.config import check_choice
from palmette.encoder.base import Encoder, WrappedEncoder, inner, with_titles
from palmette.encoder.sentences import Sentences
from palmette.encoder.sentences.splitting import estimate_tokens, split_sentences
from palmette.errors import ConfigError

log = logging.getLogger("palmette.encoder.sentences.separate")

SEPARATE = "separate"
"""Value of the option ``sentences``."""
MARK = "+separate"
"""End of the fingerprint of such an encoder."""

_separated: WeakValueDictionary[int, SeparateSentences] = WeakValueDictionary()


class SeparateSentences(WrappedEncoder):
    """An encoder without token states whose documents are encoded twice: as a whole, and each sentence by itself.

    A log line says before how many sentences and tokens that is. Equal sentences are encoded once.
    """

    forward, iter_states = inner("forward"), inner("iter_states")
    encode, encode_queries = inner("encode"), inner("encode_queries")

    def __init__(self, encoder: Encoder) -> None:
        if encoder.has_offsets:
            raise ConfigError(
                f"encoder {encoder.name!r} gives the vectors of sentences in its pass over a document: leave "
                f"sentences={SEPARATE!r} out"
            )
        super().__init__(encoder)
        self.fingerprint = encoder.fingerprint + MARK

    def __reduce__(self) -> tuple[Any, ...]:
        return separate, (self.encoder, SEPARATE)

    def to_config(self) -> dict[str, Any]:
        """Return the config of the encoder inside, with this option."""
        return {**self.encoder.to_config(), "fingerprint": self.fingerprint, "sentences": SEPARATE}

    def pooled_sentences(
        self, texts: Sequence[str], above: Sequence[str], encode: Callable[[Sequence[str]], Floats]
    ) -> tuple[Floats, Sentences]:
        """Return vectors of documents [N, d], and of their sentences, each distinct text encoded once."""
        whole = with_titles(texts, above)
        spans = [split_sentences(text) for text in texts]
        sentences = [text[start:end] for text, own in zip(texts, spans, strict=True) for start, end in own]
        rows = {text: row for row, text in enumerate(dict.fromkeys([*whole, *sentences]))}
        more = list(rows)[len(set(whole)) :]
        log.log(
            logging.WARNING if self.remote else logging.INFO,
            "%s: %s sentences, about %s tokens, are encoded by themselves beside %s documents",
            *(self.name, f"{len(more):,}", f"{sum(estimate_tokens(more)):,}", f"{len(texts):,}"),
        )
        vectors = encode(list(rows))
        places = np.array([span for own in spans for span in own], np.int32).reshape(-1, 2)
        starts = np.cumsum([0, *map(len, spans)], dtype=np.int64)
        by_sentence = vectors[[rows[sentence] for sentence in sentences]]
        return vectors[[rows[text] for text in whole]], Sentences.of(by_sentence, places, starts)


def separate(encoder: Encoder, sentences: str | None) -> Encoder:
    """Return an encoder with the option ``sentences``; ``None`` leaves it as it is."""
    if sentences is None or isinstance(encoder, SeparateSentences):
        return encoder
    check_choice("sentences", sentences, (SEPARATE,))
    key = id(encoder)  # its own as long as SeparateSentences keeps the encoder
    return _separated.setdefault(key, _separated.get(key) or SeparateSentences(encoder))


@contextmanager
def announced() -> Iterator[None]:
    """Print to stderr what will be paid: the log lines of servers' encoders."""
    handler = logging.StreamHandler()
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def without_option(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of the encoder inside."""
    plain = {name: value for name, value in config.items() if name != "sentences"}
    if isinstance(plain.get("fingerprint"), str):
        plain["fingerprint"] = plain["fingerprint"].removesuffix(MARK)
    return plain
