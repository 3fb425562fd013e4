"""Training pairs, encoded once, and the sample of judged queries that validates (Q queries, N documents)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from palmette.arrays import Rows
from palmette.data import RetrievalData
from palmette.data.metrics import Judgements, query_scores, score_ranks
from palmette.encoder import Encoder, Kind, States
from palmette.encoder.cache import EncodingCache
from palmette.training.loop import Task

DEV_QUERIES = 500
"""Queries of a validation sample at most."""
DEV_DOCUMENTS = 5_000
"""Documents of a validation sample at most."""
NEAREST_NEGATIVES = 100
"""Nearest documents of a validation query that may take part in it."""

Similarity = Callable[[Tensor, Tensor], Tensor]
"""[Q, c], [N, c] → [Q, N]."""


def inner_product(queries: Tensor, documents: Tensor) -> Tensor:
    """[Q, c], [N, c] → [Q, N]."""
    return queries @ documents.T


def top_documents(queries: Tensor, documents: Tensor, similarity: Similarity = inner_product, depth: int = 10) -> Rows:
    """Places of the most similar documents [N, c] of each query [Q, c], best first: [Q, ≤ depth]."""
    depth = min(depth, len(documents))
    parts = [similarity(part, documents).topk(depth, dim=1).indices for part in torch.split(queries, 64)]
    places: Rows = torch.cat(parts).cpu().numpy()  # [64, N] at a time
    return places


@dataclass(frozen=True)
class Validation:
    """Rows of judged queries, rows of the documents they are ranked against, and the judgements among those."""

    queries: Rows
    documents: Rows
    judgements: Judgements

    @classmethod
    def of(
        cls,
        data: RetrievalData,
        seed: int,
        *,
        split: str = "dev",
        queries: int = DEV_QUERIES,
        documents: int = DEV_DOCUMENTS,
    ) -> Self | None:
        """Sample a split: the judged documents, and others at random; ``None`` if no query of it has an answer."""
        if not data.qrels.get(split):
            return None
        draw = np.random.default_rng(seed)
        every = list(data.split(split).qrels.items())
        chosen = [every[place] for place in np.sort(draw.permutation(len(every))[:queries]).tolist()]
        grades = [judged for _, judged in chosen]
        if not any(grade > 0 for judged in grades for grade in judged.values()):
            return None
        needed = np.unique([data.rows[document] for judged in grades for document in judged])
        others = np.setdiff1d(np.arange(len(data.corpus)), needed)
        extra = draw.permutation(others)[: max(0, documents - len(needed))]
        ranked = np.sort(np.concatenate([needed, extra])).astype(np.int64)
        places = {data.corpus[row].key: place for place, row in enumerate(ranked.tolist())}
        rows = np.array([data.query_rows[query] for query, _ in chosen], np.int64)
        return cls(rows, ranked, Judgements.of_queries(grades, places, len(ranked)))

    def with_nearest_documents(self, queries: Tensor, documents: Tensor, keep: Rows | None = None) -> Self:
        """Validation of the same size whose unjudged documents are the nearest of [N, d] to its queries of [Q, d].

        ``keep`` names rows of documents that stay.

        Near documents are the realistic confusions, and a random sample has few of them. On MedQuAD's 16,407 documents
        a tree's nDCG@10 is .920. 5,000 random documents estimate .955, and showed gains for steps that made it worse;
        5,000 nearest documents estimate .919, and fall with the true figure.
        """
        count = len(self.documents)
        if count == len(documents):
            return self
        # 1. Judged documents stay; then every query's nearest, every query's next, and so on.
        needed = self.judged if keep is None else np.union1d(self.judged, keep)
        lengths = documents.norm(dim=1).clamp_min(1e-12)
        own = queries[torch.from_numpy(self.queries)]
        near = top_documents(own, documents, lambda q, d: q @ d.T / lengths, NEAREST_NEGATIVES)  # [Q, ≤ NEAR]
        ranked, first = np.unique(near.T, return_index=True)
        by_rank = ranked[np.argsort(first)]
        chosen = np.union1d(needed, by_rank[~np.isin(by_rank, needed)][: count - len(needed)])
        # 2. Where these are too few, documents from everywhere fill the number up.
        others = np.setdiff1d(self.documents, chosen)
        spread = np.linspace(0, len(others) - 1, count - len(chosen)).astype(np.int64)
        rows = np.union1d(chosen, others[spread]).astype(np.int64)
        # 3. The judgements, by the documents' new places.
        query, place = np.divmod(self.judgements.keys, count)
        local, grades = np.searchsorted(rows, self.documents[place]), self.judgements.grades
        judgements = Judgements.of(len(self.queries), count, query, local, grades)
        return replace(self, documents=rows, judgements=judgements)

    @property
    def judged(self) -> Rows:
        """Rows of the documents that are judged."""
        rows: Rows = self.documents[np.unique(self.judgements.keys % len(self.documents))]
        return rows

    def each(self, ranks: Rows) -> NDArray[np.float64]:
        """nDCG@10 by query that has an answer, from the best places among ``documents`` [Q, ≤ 10]."""
        by_query = query_scores(ranks, self.judgements, ks=(10,))["ndcg@10"]
        return by_query[self.judgements.relevant > 0]

    def score_ranking(self, ranks: Rows) -> dict[str, float]:
        """nDCG@10, Recall@10 and MRR@10 of the best places among ``documents`` for each query [Q, ≤ 10]."""
        scores = score_ranks(ranks, self.judgements, ks=(10,))
        return {name: scores[name] for name in ("ndcg@10", "recall@10", "mrr@10")}


class TokenRows(NamedTuple):
    """Token states of some texts, mapped from disk."""

    flat: NDArray[np.float16]  # [Σ T, d]
    offsets: Rows  # text i has flat[offsets[i] : offsets[i + 1]]
    place: Mapping[int, int]  # row → i

    def take(self, rows: Rows, device: torch.device) -> tuple[Tensor, Tensor]:
        """Rows [B] → padded states [B, T, d] and their mask [B, T]."""
        at = [self.place[row] for row in rows.tolist()]
        parts = [torch.from_numpy(np.array(self.flat[self.offsets[i] : self.offsets[i + 1]], np.float32)) for i in at]
        tokens = nn.utils.rnn.pad_sequence(parts, batch_first=True)  # [B, T, d]
        lengths = torch.tensor([len(part) for part in parts])
        mask = torch.arange(tokens.shape[1]) < lengths[:, None]  # [B, T]
        return tokens.to(device), mask.to(device)


@dataclass(frozen=True)
class TrainingPairs:
    """Embeddings of a data set's training and validation texts, and the pairs among them."""

    data: RetrievalData
    queries: Tensor  # [Q, d] by query row; those that neither train nor validate are zero
    documents: Tensor  # [N, d] by document row
    query_rows: Rows  # [P] query of each training pair
    document_rows: Rows  # [P] its document
    dev: Validation | None  # queries and documents that validate
    query_tokens: TokenRows | None = None  # token states of the same queries and texts, if wanted
    document_tokens: TokenRows | None = None

    @classmethod
    def encode(
        cls,
        data: RetrievalData,
        encoder: Encoder,
        cache: EncodingCache,
        *,
        seed: int = 0,
        progress: bool | None = None,
        tokens: bool = False,
    ) -> Self:
        """Encode what training and validation read, with ``tokens`` the token states too (they stay on disk)."""
        train, dev = data.pairs("train"), Validation.of(data, seed)
        query_rows = np.unique(np.concatenate([train.queries, dev.queries if dev else train.queries]))
        texts = [data.query_texts[row] for row in query_rows]
        queries = np.zeros((len(data.query_texts), encoder.dimension), np.float32)
        queries[query_rows] = cache.encode(encoder, texts, kind="query", progress=progress)
        documents = cache.encode(encoder, data.texts, kind="document", progress=progress)
        pairs = cls(data, torch.from_numpy(queries), torch.from_numpy(documents), *train, dev)
        if dev:
            near = dev.with_nearest_documents(pairs.queries, pairs.documents)
            pairs = replace(pairs, dev=near)
        if not tokens:
            return pairs
        of_queries = cache.encode_tokens(encoder, texts, kind="query", progress=progress)
        of_texts = cache.encode_tokens(encoder, data.texts, kind="document", progress=progress)
        return replace(
            pairs,
            query_tokens=TokenRows(*of_queries, {row: at for at, row in enumerate(query_rows.tolist())}),
            document_tokens=TokenRows(*of_texts, {row: row for row in range(len(data.texts))}),
        )

    def __len__(self) -> int:
        return len(self.query_rows)

    def to(self, device: torch.device) -> Self:
        """Pairs with their embeddings on another device."""
        return replace(self, queries=self.queries.to(device), documents=self.documents.to(device))

    def texts(self, kind: Kind, rows: Rows) -> list[str]:
        """Texts of query rows or document rows."""
        texts = self.data.query_texts if kind == "query" else self.data.texts
        return [texts[row] for row in rows.tolist()]

    def known_answers(self, query_rows: Rows, document_rows: Rows) -> Tensor:
        """[B, M] True where a document is known to answer a query."""
        return torch.from_numpy(self.data.positives_mask(query_rows, document_rows)).to(self.queries.device)

    def states(self, kind: Kind, rows: Rows) -> States:
        """Encoder states of query rows or document rows."""
        query = kind == "query"
        pooled, tokens = (self.queries, self.query_tokens) if query else (self.documents, self.document_tokens)
        padded, mask = (None, None) if tokens is None else tokens.take(rows, pooled.device)
        return States(pooled[torch.from_numpy(rows)], tokens=padded, mask=mask)

    def hard_negatives(self, rows: Rows, generator: torch.Generator) -> Rows:
        """Documents given as wrong: one for each query of training rows [B] that has any, at random, each once: [M]."""
        negatives = self.data.negatives
        if not len(negatives.values):
            return negatives.values
        draw = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
        document = np.unique(negatives.sample(self.query_rows[rows], 1, draw))
        return document[document >= 0]

    def held_out(self, represent: Callable[[States], Tensor]) -> tuple[Tensor, Tensor]:
        """Validation queries and the documents they are ranked against, after ``represent``, in parts."""
        assert self.dev is not None
        size = 1024 if self.document_tokens is None else 32
        sides: tuple[tuple[Kind, Rows], ...] = (("query", self.dev.queries), ("document", self.dev.documents))
        queries, documents = (
            torch.cat([represent(self.states(kind, rows[at : at + size])) for at in range(0, len(rows), size)])
            for kind, rows in sides
        )
        return queries, documents


@dataclass
class PairsTask(Task):
    """Task on encoded training pairs."""

    module: nn.Module
    pairs: TrainingPairs

    def size(self) -> int:
        """Training pairs."""
        return len(self.pairs)

    def to(self, device: torch.device) -> None:
        """Move the embeddings beside the module."""
        self.pairs = self.pairs.to(device)
