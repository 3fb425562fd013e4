"""What an index says beyond its hits: an overview of its topics, and the context of a question."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from palmette.config import check_range
from palmette.errors import ConfigError, shown
from palmette.index.context import TOKENS, Context, context_of
from palmette.index.folder import check_count
from palmette.index.grouping import Shown
from palmette.index.overview import ASKED, Overview, overview_of
from palmette.index.results import Boost, FilterLike, read_queries
from palmette.index.search import Searching
from palmette.ranking.score import DEFAULT, Lexical, probability
from palmette.store.filters import parse_filter


class Exploring(Searching):
    """Surveys of the documents of an index, and contexts of questions."""

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

    def context(
        self,
        question: str,
        tokens: int = TOKENS,
        *,
        k: int = 20,
        filter: FilterLike = None,
        threshold: float = 0.0,
        lexical: Lexical = DEFAULT,
        boost: Boost = None,
        **options: Any,
    ) -> Context:
        """Gather what answers a question in few words: ``str(index.context(question))`` is the context of a prompt.

        The best sentences of the ``k`` best passages come with a sentence before and two after them, joined where they
        follow each other, in the order of their documents, each excerpt with its place. Passages that say nearly the
        same count once.

        Args:
            question: The question.
            tokens: Tokens of all excerpts together, as the index's encoder counts them.
            k: Number of passages whose sentences are read.
            filter: As for :meth:`search`.
            threshold: Leave out passages that are less probable.
            lexical: As for :meth:`search`.
            boost: As for :meth:`search`.
            options: The method's own.
        """
        if not isinstance(question, str):
            raise ConfigError(f"a context takes one question, a str; got {shown(question)}")
        k, tokens = check_count("k", k), check_count("tokens", tokens)
        check_range("a context", "threshold", threshold, 0, 1)
        batch = read_queries(self.model, [question], options, lexical, self._sentences, boost)
        with self.backend.read(parse_filter(filter)) as view:
            result, _ = Shown(distinct="near").search(batch, view, k, self._units)
            return context_of(result, view, question, tokens, self.model.encoder.count_tokens, threshold)
