"""Units of meaning that an index scores by."""

from typing import Any

from palmette import Index
from palmette.ranking.score import Units
from palmette.search.plan import View


def units_of(index: Index, options: Any, view: View) -> Units:
    """Return the units of a search with these validated options."""
    return index._units(options, view)
