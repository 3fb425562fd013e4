"""What tests of indexes share: places of every kind of storage, and an encoder that counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from palmette import FakeEncoder
from support.places import KINDS, places


class Counting(FakeEncoder):
    """Counts the texts that are encoded."""

    texts = 0

    def encode_sentences(self, texts, **options):
        self.texts += len(texts)
        return super().encode_sentences(texts, **options)


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest) -> Iterator[Callable[[], str | Path]]:
    with places(request.param) as name:
        yield name
