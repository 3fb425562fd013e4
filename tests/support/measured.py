"""Units of meaning that an index scores by."""

from typing import Any

from palmette import Index
from palmette.ranking.arrays import stores_sentences
from palmette.ranking.score import Units, noted_units
from palmette.ranking.units import UNITS, units_for
from palmette.store.protocols import View


def units_of(index: Index, options: Any, _view: View | None = None) -> Units:
    """Return the units of a search with these validated options: noted with the documents, or measured."""
    with index.backend.read() as view:
        noted = noted_units(view.note(UNITS) or "")
        if not index.model.lexical_key(options):
            return noted
        units = units_for(index.model, options, view, stores_sentences(index.backend))
    return units.replace(documents=noted.documents)
