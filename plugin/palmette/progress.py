"""Progress bars."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def progress_bar(progress: bool | None, items: Iterable[Any] | None = None, **options: Any) -> Any:
    """Create a tqdm bar: ``True`` shows it, ``False`` hides it, and ``None`` shows it on a terminal."""
    from tqdm.auto import tqdm

    return tqdm(items, disable=None if progress is None else not progress, **options)
