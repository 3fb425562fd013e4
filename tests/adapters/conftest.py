"""What both adapters do alike, in both frameworks."""

from __future__ import annotations

from typing import Any

import pytest

from support.frameworks import FRAMEWORKS


@pytest.fixture(params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest) -> Any:
    return FRAMEWORKS[request.param]
