"""Every tree of these tests has a short start."""

from collections.abc import Iterator

import pytest

from support.tiny import short_start


@pytest.fixture(scope="package", autouse=True)
def short() -> Iterator[None]:
    with short_start():
        yield
