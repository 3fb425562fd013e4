"""Overviews of an index by topic, contexts of a question for a prompt, and stored vectors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from palmette.arrays import Floats, unit_rows
from palmette.config import check_count, check_range
from palmette.errors import ConfigError, shown
from palmette.index.context import TOKENS, Context, context_of
from palmette.index.grouping import Selection
from palmette.index.inputs import check_ids
from palmette.index.overview import RANKED_FOR_QUESTION, Overview, overview_of, vector_array
from palmette.index.results import Boost, read_queries
from palmette.index.search import Searching
from palmette.ranking.score import DEFAULT, Lexical, probability
from palmette.store.filters import FilterLike
from palmette.types import Hit


class Exploring(Searching):
    """The part of an index that describes its documents, and collects the context of a question."""

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
            query: A question; each topic then has the probability that it answers, and the most probable is first.
            filter: Conditions on metadata.
            topics: Largest number of topics.
            since: A date, such as ``2025-11-03``: each topic counts the documents of that date or later.
            date: Name of the metadata that hold a document's date.
        """
        if query is not None and not isinstance(query, str):
            raise ConfigError(f"an overview takes one question, a str, or none; got {shown(query)}")
        batch = query if query is None else read_queries(self.model, [query], {}, DEFAULT, self._sentences)
        with self.backend.read(filter) as view:
            answers = None
            if batch is not None and len(view):
                result = batch.search(view, RANKED_FOR_QUESTION, self._units)
                answers = result.candidates.keys[0], probability(result.logits[0])
            return replace(overview_of(self.model, view, topics, answers, since, date), query=query)

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
        """Collect the best sentences for a question; ``str(index.context(question))`` goes into a prompt.

        The best sentences of the ``k`` best passages are returned with one sentence before and two after each, joined
        where they are adjacent, in the order of their documents. Each excerpt has a citation. Near-identical passages
        count once.

        Args:
            question: The question.
            tokens: Tokens of all excerpts together, as the index's encoder counts them.
            k: Number of passages whose sentences are read.
            filter: As for :meth:`search`.
            threshold: Least probability of a passage.
            lexical: As for :meth:`search`.
            boost: As for :meth:`search`.
            options: The method's search options.
        """
        if not isinstance(question, str):
            raise ConfigError(f"a context takes one question, a str; got {shown(question)}")
        k, tokens = check_count("k", k), check_count("tokens", tokens)
        check_range("a context", "threshold", threshold, 0, 1)
        batch = read_queries(self.model, [question], options, lexical, self._sentences, boost)
        with self.backend.read(filter) as view:
            result, _ = Selection(distinct="near").search(batch, view, k, self._units)
            return context_of(result, view, question, tokens, self.model.encoder.count_tokens, threshold)

    def vectors(self, ids: Iterable[str | Hit]) -> Floats:
        """Return stored vectors of documents, of length 1: [n, d]; zeros for an unknown id.

        The vector of a document of several passages is the mean of theirs; a hit has the vector of its passage.
        """
        spec = vector_array(self.model)
        unchecked: Any = ids
        is_list = isinstance(unchecked, Iterable) and not isinstance(unchecked, str)
        items: list[str | Hit] = list(unchecked if is_list else check_ids(unchecked))
        document_ids = check_ids([item.id if isinstance(item, Hit) else item for item in items])
        sums = np.zeros((len(items), *spec.shape), np.float32)
        with self.backend.read() as view:
            keys_of = view.keys_of(document_ids)
            keys = [keys_of.get(id, ()) for id in document_ids]  # of the passages of each item
            for row, item in enumerate(items):
                if isinstance(item, Hit) and item.passage is not None:
                    keys[row] = keys[row][item.passage.number : item.passage.number + 1]
            vectors = view.rows(spec.name, [key for keys_of_item in keys for key in keys_of_item])
            owners = np.repeat(np.arange(len(items)), list(map(len, keys)))
            np.add.at(sums, owners, unit_rows(vectors.astype(np.float32)))
        return unit_rows(sums)

    def survey(self) -> dict[str, Any]:
        """Describe how the documents fill the model's structure, such as the leaves of a tree."""
        with self.backend.read() as view:
            return self.model.describe(view)
