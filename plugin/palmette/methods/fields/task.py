"""What the encoder of fields learns from: queries near their documents, by the aggregate and by every field."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from palmette.data.rows import RowLists
from palmette.held_out import HeldOut
from palmette.methods.fields.config import FieldsSearch
from palmette.methods.fields.losses import Losses, best_of, losses, taught
from palmette.methods.fields.module import FieldEncoder
from palmette.methods.fields.negatives import HardNegativeSource, by_words, mined_from
from palmette.methods.fields.passes import encoded_documents, encoded_queries, in_chunks
from palmette.methods.fields.queries import MADE, WORDS
from palmette.methods.fields.reading import Reader
from palmette.methods.fields.teacher import MOST, Teacher
from palmette.methods.fields.tokens import Tokens, field_tokens, query_limit
from palmette.search.best import best_of_each

if TYPE_CHECKING:
    from palmette.data import RetrievalData

__all__ = ["FieldsTask"]

Rows = NDArray[np.int64]

DEV_QUERIES, DEV_DOCUMENTS = 200, 1000
"""A validation encodes so many anew, so it is a smaller sample than where encodings are kept."""
SHORTLIST, BLEND = FieldsSearch().shortlist, FieldsSearch().share


@dataclass
class FieldsTask:
    """λ_agg L_agg + λ_fields L_fields + λ_max L_max (equation 6); the backbone itself learns."""

    module: FieldEncoder
    data: RetrievalData
    documents: list[Tokens]
    queries: Tokens
    query_rows: Rows
    document_rows: Rows
    dev: HeldOut | None
    progress: bool | None = None
    negatives: HardNegativeSource | None = field(default=None)
    teacher: Teacher | None = None

    @classmethod
    def of(
        cls,
        module: FieldEncoder,
        data: RetrievalData,
        reader: Reader,
        *,
        seed: int,
        progress: bool | None,
    ) -> Self:
        """Tokenise every text once."""
        config, backbone = module.config, module.backbone
        documents = field_tokens(
            backbone, reader, data.corpus, config.limits, config.ancestors, progress=progress
        )
        prompt = backbone.prompts.get("query", "")
        texts = [prompt + text for text in data.query_texts]
        queries = Tokens.read(
            backbone, texts, query_limit(backbone, config), progress=progress, label="Reading queries"
        )
        train = data.pairs("train")
        dev = HeldOut.of(data, seed, queries=DEV_QUERIES, documents=DEV_DOCUMENTS)
        # What remains of a document without its query is no document of fields: the whole one answers instead.
        right = np.where(train.documents < len(data.corpus), train.documents, cls._whole(data, train.queries))
        made = cls(module, data, documents, queries, train.queries, right, dev, progress)
        by_words = config.targets == "words" or (config.targets == "auto" and not data.labelled)
        if by_words:
            made.query_rows = made._rows_of("train", MADE)
            made.teacher = made._taught(reader, seed)
        else:
            made.negatives = made._hard()
        return made

    @staticmethod
    def _whole(data: RetrievalData, queries: Rows) -> Rows:
        names = list(data.queries)
        train = data.qrels["train"]
        return np.array([data.rows[next(iter(train[names[row]]))] for row in queries.tolist()], np.int64)

    def _rows_of(self, *splits: str) -> Rows:
        """The queries of some splits, each once."""
        named = {query for split in splits for query in self.data.qrels.get(split, {})}
        return np.sort(np.array([self.data.query_rows[query] for query in named], np.int64))

    @property
    def heard(self) -> Rows:
        """Queries whose words may be learned: those that train and all made ones; none that judges hold out."""
        return self._rows_of("train", MADE, WORDS, *([] if self.data.labelled else ["dev"]))

    def _hard(self) -> HardNegativeSource | None:
        config = self.module.config
        match config.negatives:
            case "given":
                lists = self.data.negatives
                return HardNegativeSource(lists) if len(lists.values) else None
            case "words":
                queries = np.unique(self.query_rows)
                lists = mined_from(self.data, queries, by_words(self.data), self.known, config.mining_depth)
                return HardNegativeSource(lists)
            case "mined":
                return HardNegativeSource(self.data.negatives, rounds=config.mining_rounds)
        return None

    def _taught(self, reader: Reader, seed: int) -> Teacher:
        """What the module as it is and words make of the documents, or of a sample of many."""
        rows = np.arange(len(self.data.corpus))
        if len(rows) > MOST:
            rows = np.random.default_rng(seed).permutation(rows)[:MOST]
            rows = np.union1d(rows, self.document_rows) if self.data.labelled else np.sort(rows)
        self.module.eval()
        made = encoded_documents(self.module, self.fields_of(rows), progress=self.progress)
        vectors = made.fields[:, -1] if self.module.config.reads_whole else made.aggregate
        whole = self.module.config.reads_whole
        read = [reader.read(self.data.corpus[row]) for row in rows.tolist()]
        texts = [fields[-1] if whole else " ".join(filter(None, fields)) for fields in read]
        queries = encoded_queries(self.module, [self.queries[row] for row in range(len(self.queries))])
        answers = None
        if self.data.labelled:
            judged = self.data.pairs("train")
            places = np.searchsorted(rows, judged.documents)
            answers = RowLists.of(judged.queries, places, len(self.data.queries))
        return Teacher(rows, vectors, texts, queries, self.data.query_texts, answers)

    @property
    def metric(self) -> str:
        """What the best weights are chosen by: that of a search in two stages."""
        return "ndcg@10"

    def size(self) -> int:
        """Training pairs."""
        return len(self.query_rows)

    def to(self, device: torch.device) -> None:
        """Token ids stay where they are."""

    def fields_of(self, rows: Rows) -> list[list[list[int]]]:
        """Token ids of some documents, by field."""
        return [[tokens[row] for tokens in self.documents] for row in rows.tolist()]

    def known(self, queries: Rows, documents: Rows) -> NDArray[np.bool_]:
        """Which documents answer which queries [B, M], as far as is known.

        A query that was made from one document is answered by any other that has all of its words.
        """
        mask = self.data.positives_mask(queries, documents)
        if not self.data.labelled:
            held = [self._words[row] for row in documents.tolist()]
            asked = [frozenset(self.queries[row]) for row in queries.tolist()]
            mask |= np.array([[words <= having for having in held] for words in asked]).reshape(mask.shape)
        return mask

    @cached_property
    def _words(self) -> list[frozenset[int]]:
        """The distinct tokens of each document."""
        return [
            frozenset(id for tokens in self.documents for id in tokens[row])
            for row in range(len(self.data.corpus))
        ]

    def loss(
        self, module: nn.Module, rows: NDArray[np.int64], generator: torch.Generator, progress: float
    ) -> Tensor:
        """Equation 6 on a batch of pairs, against its other documents and a hard negative for each query."""
        config = self.module.config
        draw = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
        queries = self.query_rows[rows]
        if self.teacher is not None:
            documents, scores = self.teacher.lesson(queries, draw)
        else:
            if self.negatives is not None and config.negatives == "mined" and self.negatives.due(progress):
                self._mine()
            hard = np.empty(0, np.int64) if self.negatives is None else self.negatives.sample(queries, draw)
            documents = np.unique(np.concatenate([self.document_rows[rows], hard]))  # [M], each once
        chunk = 0 if self.module.frozen else config.chunk
        fields, _, aggregate = in_chunks(module, "document", self.fields_of(documents), chunk)
        _, _, q = in_chunks(module, "query", [self.queries[row] for row in queries.tolist()], chunk)
        parts: Losses
        with torch.autocast(q.device.type, enabled=False):  # similarities divided by τ want every digit
            if self.teacher is not None:
                wanted = torch.from_numpy(scores).to(q.device).div(config.temperature).softmax(-1)  # [B, M]
                parts = taught(q, fields, aggregate, wanted, config.temperature)
            else:
                target = torch.from_numpy(np.searchsorted(documents, self.document_rows[rows])).to(q.device)
                known = torch.from_numpy(self.known(queries, documents)).to(q.device)  # [B, M]
                parts = losses(q, fields, aggregate, target, known, config.temperature)
        total: Tensor = (
            config.aggregate_weight * parts.aggregate
            + config.fields_weight * parts.fields
            + config.best_weight * parts.best
        )
        return total + config.diversity_weight * parts.diversity if config.diversity_weight else total

    def _mine(self) -> None:
        """Look for the documents that the module takes for answers now."""
        assert self.negatives is not None
        learning = self.module.training
        self.module.eval()
        every = np.arange(len(self.data.corpus))
        documents = encoded_documents(
            self.module, self.fields_of(every), progress=self.progress, label="Mining negatives"
        )
        aggregate = documents.aggregate
        asked = np.unique(self.query_rows)

        def ranks(texts: Sequence[str], k: int) -> Rows:
            q = encoded_queries(self.module, [self.queries[row] for row in asked.tolist()])
            parts = [
                np.argpartition(-(q[at : at + 256] @ aggregate.T), min(k, len(every) - 1), axis=1)[:, :k]
                for at in range(0, len(q), 256)
            ]
            return np.concatenate(parts)

        self.negatives.lists = mined_from(
            self.data, asked, ranks, self.known, self.module.config.mining_depth
        )
        self.module.train(learning)

    def validate(self, module: nn.Module) -> dict[str, float]:
        """Retrieval quality on held-out queries: in two stages, by the aggregate, and by the best field."""
        if self.dev is None:
            return {}
        documents = encoded_documents(self.module, self.fields_of(self.dev.documents))
        queries = encoded_queries(self.module, [self.queries[row] for row in self.dev.queries.tolist()])
        by_aggregate = queries @ documents.aggregate.T  # [Q, N]
        fields = torch.from_numpy(documents.fields)
        best = best_of(
            torch.einsum("qd,nfd->fqn", torch.from_numpy(queries), fields), fields
        ).numpy()  # [Q, N]
        worst = np.partition(by_aggregate, -min(SHORTLIST, by_aggregate.shape[1]), axis=1)
        listed = by_aggregate >= worst[:, [-min(SHORTLIST, by_aggregate.shape[1])]]
        scores: dict[str, float] = {}
        for name, table in (
            ("", np.where(listed, BLEND * by_aggregate + (1 - BLEND) * best, -np.inf)),
            (" by aggregate", by_aggregate),
            (" by best field", best),
        ):
            judged = self.dev.judge(best_of_each(table, 10))
            scores |= {key + name: value for key, value in judged.items()}
        return scores
