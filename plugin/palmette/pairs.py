"""Training pairs whose texts have been through a frozen encoder once: what pooled methods learn from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from palmette.encoder import States
from palmette.held_out import HeldOut, best_places

if TYPE_CHECKING:
    from palmette.cache import EncodingCache
    from palmette.data import RetrievalData
    from palmette.encoder import Encoder

__all__ = ["EncodedPairs", "HardNegatives"]

Rows = NDArray[np.int64]


class HardNegatives(NamedTuple):
    """Documents given as wrong answers to queries of a batch.

    Attributes:
        documents: [M, d] embeddings, each document once.
        known: [B, M] True where one of them answers another query of the batch.
        rows: [M] which documents they are.
    """

    documents: Tensor
    known: Tensor
    rows: Rows


class TokenRows(NamedTuple):
    """Token states of some texts, mapped from disk.

    Attributes:
        flat: [Σ T, d] float16.
        offsets: Text i has ``flat[offsets[i] : offsets[i + 1]]``.
        place: Which i a row is.
    """

    flat: NDArray[np.float16]
    offsets: Rows
    place: Mapping[int, int]

    def take(self, rows: Rows, device: torch.device) -> tuple[Tensor, Tensor]:
        """Rows [B] → states [B, T, d], padded, and where there is a token [B, T]."""
        at = [self.place[row] for row in rows.tolist()]
        parts = [
            torch.from_numpy(np.array(self.flat[self.offsets[i] : self.offsets[i + 1]], np.float32))
            for i in at
        ]
        tokens = nn.utils.rnn.pad_sequence(parts, batch_first=True)  # [B, T, d]
        lengths = torch.tensor([len(part) for part in parts])
        mask = torch.arange(tokens.shape[1]) < lengths[:, None]  # [B, T]
        return tokens.to(device), mask.to(device)


@dataclass(frozen=True)
class EncodedPairs:
    """Embeddings of a data set's training and validation texts, and which belong together.

    Attributes:
        data: Where they come from.
        queries: [queries, d] embeddings by query row; rows of other splits stay zero.
        documents: [texts, d] embeddings by text row.
        query_rows: [P] query of each training pair.
        document_rows: [P] text of each training pair.
        dev: What validation ranks: the judged documents and those nearest to the queries.
        query_tokens: Token states of the same queries, where asked for.
        document_tokens: And of the texts.
    """

    data: RetrievalData
    queries: Tensor
    documents: Tensor
    query_rows: Rows
    document_rows: Rows
    dev: HeldOut | None
    query_tokens: TokenRows | None = None
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
        """Encode what training and validation read; texts seen before come from the cache.

        With ``tokens`` the token states too, which stay on disk.
        """
        train, dev = data.pairs("train"), HeldOut.of(data, seed)
        wanted = np.unique(np.concatenate([train.queries, dev.queries if dev else train.queries]))
        texts = data.query_texts
        queries = np.zeros((len(texts), encoder.dimension), np.float32)
        found = cache.encode(encoder, [texts[row] for row in wanted], kind="query", progress=progress)
        queries[wanted] = found
        documents = cache.encode(encoder, data.texts, kind="document", progress=progress)
        made = cls(data, torch.from_numpy(queries), torch.from_numpy(documents), *train, dev)
        if dev:
            near = dev.among_nearest(made.queries, made.documents[: len(data.corpus)])
            made = replace(made, dev=near)
        if not tokens:
            return made
        asked = cache.encode_tokens(encoder, [texts[row] for row in wanted], kind="query", progress=progress)
        read = cache.encode_tokens(encoder, data.texts, kind="document", progress=progress)
        return replace(
            made,
            query_tokens=TokenRows(*asked, {row: at for at, row in enumerate(wanted.tolist())}),
            document_tokens=TokenRows(*read, {row: row for row in range(len(data.texts))}),
        )

    def __len__(self) -> int:
        return len(self.query_rows)

    def to(self, device: torch.device) -> Self:
        """The embeddings on another device."""
        return replace(self, queries=self.queries.to(device), documents=self.documents.to(device))

    def sample(self, size: int, generator: torch.Generator) -> Rows:
        """Some training rows at random."""
        rows: Rows = torch.randperm(len(self), generator=generator)[:size].numpy()
        return rows

    def batch(self, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """Training rows [B] → queries [B, d], documents [B, d], and who belongs to whom [B, B]."""
        query, document = self.query_rows[rows], self.document_rows[rows]
        return (
            self.queries[torch.from_numpy(query)],
            self.documents[torch.from_numpy(document)],
            self.known(rows),
        )

    def known(self, rows: Rows) -> Tensor:
        """Which queries of training rows [B] the documents of these rows are known to answer: [B, B]."""
        mask = self.data.positives_mask(self.query_rows[rows], self.document_rows[rows])
        return torch.from_numpy(mask).to(self.queries.device)

    def query_states(self, rows: Rows) -> States:
        """What the encoder gave for query rows."""
        return _states(self.queries, self.query_tokens, rows)

    def document_states(self, rows: Rows) -> States:
        """What it gave for text rows."""
        return _states(self.documents, self.document_tokens, rows)

    def hard_negatives(self, rows: Rows, generator: torch.Generator) -> HardNegatives | None:
        """One given negative for each query of training rows [B] that has any, at random; ``None`` without."""
        if not len(self.data.negatives.values):
            return None
        query = self.query_rows[rows]
        draw = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
        document = np.unique(self.data.negatives.sample(query, 1, draw))
        document = document[document >= 0]
        if not len(document):
            return None
        known = torch.from_numpy(self.data.positives_mask(query, document)).to(self.queries.device)
        return HardNegatives(self.documents[torch.from_numpy(document)], known, document)

    def held_out(self, represent: Callable[[States], Tensor]) -> tuple[Tensor, Tensor]:
        """The held-out queries and the documents they are ranked against, after ``represent``, in parts."""
        assert self.dev is not None
        part = 1024 if self.document_tokens is None else 32
        queries, documents = (
            torch.cat([represent(states(rows[at : at + part])) for at in range(0, len(rows), part)])
            for states, rows in (
                (self.query_states, self.dev.queries),
                (self.document_states, self.dev.documents),
            )
        )
        return queries, documents

    def judge(
        self, queries: Tensor, documents: Tensor, similarity: Callable[[Tensor, Tensor], Tensor]
    ) -> dict[str, float]:
        """nDCG@10, Recall@10 and MRR@10 of what :meth:`held_out` gave ([Q, c] and [N, c]) under a similarity."""
        assert self.dev is not None
        return self.dev.judge(best_places(queries, documents, similarity))

    def validate(
        self, represent: Callable[[Tensor], Tensor], similarity: Callable[[Tensor, Tensor], Tensor]
    ) -> dict[str, float]:
        """The held-out metrics of a map of embeddings; empty where nothing is held out."""
        return (
            {}
            if self.dev is None
            else self.judge(*self.held_out(lambda s: represent(_pooled(s))), similarity)
        )


def _states(pooled: Tensor, tokens: TokenRows | None, rows: Rows) -> States:
    embedded = pooled[torch.from_numpy(rows)]
    states, mask = (None, None) if tokens is None else tokens.take(rows, pooled.device)
    return States(embedded, tokens=states, mask=mask)


def _pooled(states: States) -> Tensor:
    assert states.pooled is not None
    return states.pooled
