"""What surrounds the hits of an index: an overview of its topics."""

from __future__ import annotations

from dataclasses import replace

from palmette.errors import ConfigError, shown
from palmette.index.overview import ASKED, Overview, overview_of
from palmette.index.search import FilterLike, Searching, read_queries
from palmette.ranking.score import DEFAULT, probability
from palmette.store.filters import parse_filter


class Exploring(Searching):
    """Surveys of the documents of an index."""

    def overview(
        self,
        query: str | None = None,
        *,
        filter: FilterLike = None,
        topics: int = 12,
        since: str | None = None,
        date: str = "date",
    ) -> Overview:
        """Survey the index by topics: words, counts and typical passages, without a language model.

        Args:
            query: A question; each topic then says with what probability it answers, and the best come first.
            filter: Conditions on metadata.
            topics: Number of topics at most.
            since: A date, such as ``2025-11-03``: each topic counts the documents that are dated so or later.
            date: Name of the metadata that date them.
        """
        if query is not None and not isinstance(query, str):
            raise ConfigError(f"an overview takes one question, a str, or none; got {shown(query)}")
        batch = query if query is None else read_queries(self.model, [query], {}, DEFAULT, self._sentences)
        with self.backend.read(parse_filter(filter)) as view:
            scored = None
            if batch is not None and len(view):
                result = batch.search(view, ASKED, self._units)
                scored = result.found.keys[0], probability(result.logits[0])
            return replace(overview_of(self.model, view, topics, scored, since, date), query=query)
