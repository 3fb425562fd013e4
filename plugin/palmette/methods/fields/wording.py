"""The last stage of learning without judgements: what each word of the catalogue adds to a query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from palmette.methods.fields.losses import taught
from palmette.methods.fields.passes import encoded_documents, encoded_queries
from palmette.methods.fields.teacher import Teacher
from palmette.methods.fields.tokens import Tokens
from palmette.methods.fields.words import QueryWords

if TYPE_CHECKING:
    from palmette.methods.fields.config import FieldsConfig
    from palmette.methods.fields.module import FieldEncoder
    from palmette.methods.fields.task import FieldsTask

__all__ = ["WordsTask"]

EACH, OTHERS = 30, 1024
"""Documents drawn for each query of a batch, and at random: they are vectors already, so many cost little."""


@dataclass
class WordsTask:
    """Only the tokens' vectors of queries learn, against documents that stay as they are.

    All made queries teach, those held out too: nothing is chosen by them any more. Judged ones that are held out never.
    """

    module: QueryWords
    encoder: FieldEncoder
    teacher: Teacher
    queries: Tokens
    rows: NDArray[np.int64]
    """[Q] those that teach."""
    asked: Tensor
    """[Q, d] these before anything is added."""
    fields: Tensor
    """[N, F, d]"""
    aggregate: Tensor
    """[N, d]"""

    @classmethod
    def of(cls, task: FieldsTask, teacher: Teacher, words: QueryWords) -> Self:
        """Encode what stays as it is."""
        encoder = task.module.eval()
        made = encoded_documents(encoder, task.fields_of(teacher.rows), progress=task.progress)
        tokens = [task.queries[row] for row in task.heard.tolist()]
        asked = encoded_queries(encoder, tokens, words=False)
        fields, aggregate = torch.from_numpy(made.fields), torch.from_numpy(made.aggregate)
        return cls(
            words, encoder, teacher, task.queries, task.heard, torch.from_numpy(asked), fields, aggregate
        )

    @property
    def metric(self) -> str:
        """None is measured."""
        return ""

    def size(self) -> int:
        """Queries."""
        return len(self.rows)

    def to(self, device: torch.device) -> None:
        """The vectors of documents stay where they are; those of a batch follow it."""

    def loss(
        self, module: nn.Module, rows: NDArray[np.int64], generator: torch.Generator, progress: float
    ) -> Tensor:
        """The teacher's ranking, by the aggregate and by the best field."""
        config: FieldsConfig = self.encoder.config
        draw = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
        queries = self.rows[rows]
        documents, scores = self.teacher.lesson(queries, draw, EACH, OTHERS)
        places = torch.from_numpy(np.searchsorted(self.teacher.rows, documents))
        added = module([self.queries[row] for row in queries.tolist()])
        q = self.encoder.scaled(self.asked[rows].to(added.device) + added)  # [B, d]
        wanted = torch.from_numpy(scores).to(q.device).div(config.temperature).softmax(-1)  # [B, M]
        fields, aggregate = (part[places].to(q.device) for part in (self.fields, self.aggregate))
        parts = taught(q, fields, aggregate, wanted, config.temperature)
        return config.aggregate_weight * parts.aggregate + config.best_weight * parts.best

    def validate(self, module: nn.Module) -> dict[str, float]:
        """Nothing: the last weights are kept."""
        return {}
