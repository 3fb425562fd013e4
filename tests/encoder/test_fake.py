"""The fake encoder is what tests stand on: near texts are near, and nothing about it ever changes."""

from __future__ import annotations

import hashlib

from palmette.encoder import FakeEncoder
from support.tiny_encoder import states_of


def test_bits_are_the_same_in_every_process_and_release():
    encoder = FakeEncoder(16, num_layers=2)
    states = states_of(encoder, ["The cat sat.", "", "naïve ☃"], outputs=("pooled", "tokens", "layers"))
    content = b"".join(t.tobytes() for t in (states.pooled, states.tokens, states.layers))
    assert hashlib.sha256(content).hexdigest()[:16] == "70b029dc87051973"
