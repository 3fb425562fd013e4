"""The fake encoder is what tests stand on: near texts are near, and nothing about it ever changes."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from palmette.encoder import FakeEncoder
from palmette.errors import ConfigError
from support.tiny_encoder import states_of


def test_bits_are_the_same_in_every_process_and_release():
    encoder = FakeEncoder(16, num_layers=2)
    states = states_of(encoder, ["The cat sat.", "", "naïve ☃"], outputs=("pooled", "tokens", "layers"))
    content = b"".join(t.tobytes() for t in (states.pooled, states.tokens, states.layers))
    assert hashlib.sha256(content).hexdigest()[:16] == "70b029dc87051973"


def test_the_limit_holds_and_is_part_of_the_fingerprint():
    short, long = FakeEncoder(8, max_length=4), FakeEncoder(8)
    assert states_of(short, ["a b c d e f"], outputs=("tokens",)).tokens.shape == (1, 4, 8)
    assert short.fingerprint != long.fingerprint
    others = [long, FakeEncoder(9), FakeEncoder(8, num_layers=2)]
    assert len({other.fingerprint for other in others}) == 3
    found = short.encode(["", "\ud800", "☃ naïve ", "word " * 60])
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)
    with pytest.raises(ConfigError, match="dimension"):
        FakeEncoder(0)
