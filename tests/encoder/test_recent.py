"""An encoder that remembers what it met last."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from palmette import FakeEncoder
from palmette.encoder.recent import Recent

TEXTS = ["a green owl", "", "a lone \ud800 surrogate", "a green owl", "a blue door"]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> tuple[FakeEncoder, list[str]]:
    """An encoder, and the documents that it has read."""
    encoder, seen = FakeEncoder(16), []
    encode = encoder.encode

    def noted(texts: Any, **how: Any) -> Any:
        if how.get("kind", "document") == "document":
            seen.extend(texts)
        return encode(texts, **how)

    monkeypatch.setattr(encoder, "encode", noted)
    return encoder, seen


def test_vectors_are_the_encoders_and_every_text_is_read_once(watched: tuple[FakeEncoder, list[str]]) -> None:
    encoder, seen = watched
    recent = Recent(encoder)
    assert np.array_equal(recent.encode(TEXTS), FakeEncoder(16).encode(TEXTS))
    assert seen == [*TEXTS[:3], TEXTS[4]]  # one of them is there twice
    assert np.array_equal(
        recent.encode(["a red wall", *TEXTS[::-1]]), FakeEncoder(16).encode(["a red wall", *TEXTS[::-1]])
    )
    assert seen[4:] == ["a red wall"]
    assert recent.encode([]).shape == (0, 16)
    assert np.array_equal(recent.encode_queries(["owl"]), encoder.encode_queries(["owl"]))


def test_what_was_not_met_for_longest_goes_first(watched: tuple[FakeEncoder, list[str]]) -> None:
    encoder, seen = watched
    recent = Recent(encoder, memory=3 * 16 * 4)
    recent.encode(["one", "two", "three"])
    recent.encode(["one", "four"])
    assert len(recent) == 3
    recent.encode(["one", "three", "four"])
    assert seen == ["one", "two", "three", "four"]
    recent.encode(["two"])
    assert seen[4:] == ["two"]
    many = [f"text {number}" for number in range(10)]
    assert np.array_equal(recent.encode(many), FakeEncoder(16).encode(many))
    assert len(recent) == 3


def test_a_caller_cannot_change_what_is_kept() -> None:
    recent = Recent(FakeEncoder(16))
    recent.encode(["one"])[:] = 0
    assert recent.encode(["one"]).any()


def test_an_encoder_that_learns_is_asked_anew(watched: tuple[FakeEncoder, list[str]]) -> None:
    encoder, seen = watched
    encoder.frozen = False
    recent = Recent(encoder)
    recent.encode(["one"])
    recent.encode(["one"])
    assert (seen, len(recent)) == (["one", "one"], 0)


def test_threads_share_it() -> None:
    recent, texts = Recent(FakeEncoder(16), memory=8 * 16 * 4), [f"text {number}" for number in range(24)]
    right, wrong = FakeEncoder(16).encode(texts), []

    def work(seed: int) -> None:
        draw = np.random.default_rng(seed)
        for _ in range(50):
            rows = draw.integers(0, len(texts), 6)
            if not np.array_equal(recent.encode([texts[row] for row in rows]), right[rows]):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(recent) == 8
