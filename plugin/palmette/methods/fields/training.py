"""Training of the field encoder: queries near their documents, by the aggregate and by every field.

A batch is B pairs of query and document; against each query stand the other M − 1 documents of the batch, among them a
hard negative (graded 0) of each query that has one. With the fields' vectors h_f and the aggregate h = Σ_f w_f h_f::

    loss = λ_Agg InfoNCE(q · h) + λ_Fields mean over f of InfoNCE(q · h_f) + λ_Max InfoNCE(max over f of q · h_f)

(equation 6, ``losses.py``). A search lists documents by q · h, and ranks these by blend q · h + (1 − blend) max over f
of q · h_f; the blend is chosen on held-out queries after training. A frozen encoder reads each text once, and only the
linear maps over it learn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from palmette.arrays import Floats, Mask, Ragged, Rows, best_of_each
from palmette.data import RetrievalData
from palmette.methods.base import FitInputs
from palmette.methods.fields.config import BLEND, BLENDS, FieldsConfig, FieldsSearch
from palmette.methods.fields.documents import FieldExtractor, field_tokens, query_tokens
from palmette.methods.fields.losses import best_field, charm_loss
from palmette.methods.fields.module import Encoded, FieldEncoder, FrozenStates, TextKind, gradient_cached
from palmette.training.config import TrainingConfig
from palmette.training.loop import Stage, Task, TrainingResult
from palmette.training.maths import info_nce
from palmette.training.pairs import Validation

FIELDS_DEV_QUERIES = 200
"""Queries of a validation, which encodes all of them anew."""
FIELDS_DEV_DOCUMENTS = 1000
"""Documents of a validation."""
INITIAL_PAIRS = 256
"""Training pairs that fit the fields' initial weights."""
WEIGHT_STEPS = 40
"""Steps that fit the initial weights: enough to tell fields apart, too few to silence any."""
WEIGHT_RATE = 0.1
"""Learning rate of these steps."""


@dataclass
class FieldsTask(Task):
    """Equation 6 on batches of labelled pairs; the encoder itself learns unless it is frozen."""

    module: FieldEncoder
    data: RetrievalData
    documents: list[Ragged]
    """Tokens of each field of all documents."""
    queries: Ragged
    query_rows: Rows
    """[P] query of each pair; no pairs without labels."""
    document_rows: Rows
    """[P] document of each pair."""
    dev: Validation | None
    objective: Callable[[FieldsConfig, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor] = charm_loss

    def __post_init__(self) -> None:
        counts: dict[TextKind, int] = {}
        if self.module.frozen and self.size():
            counts = {"document": len(self.data.corpus), "query": len(self.queries)}
        self.states = {
            kind: FrozenStates(self.module, kind, count, partial(self.texts, kind)) for kind, count in counts.items()
        }

    @classmethod
    def of(cls, module: FieldEncoder, extractor: FieldExtractor, inputs: FitInputs) -> Self:
        """Task with all texts tokenised and the fields' initial weights in the module."""
        data, seed, progress = inputs.data, inputs.seed, inputs.progress
        config, backbone = module.config, module.backbone
        if not config.labelled:
            empty = np.empty(0, np.int64)
            return cls(module, data, [], query_tokens(backbone, [], config), empty, empty, None)
        # 1. Tokens of every field and query, and the held-out queries.
        limits, attended = config.limits, config.attended
        documents = field_tokens(backbone, extractor, data.corpus, limits, attended, progress=progress)
        queries = query_tokens(backbone, data.query_texts, config, progress=progress)
        dev = Validation.of(data, seed, queries=FIELDS_DEV_QUERIES, documents=FIELDS_DEV_DOCUMENTS)
        task = cls(module, data, documents, queries, *data.pairs("train"), dev)
        # 2. Initial weights of the fields, fitted to some of the pairs.
        if module.layout.fields > 1 and config.aggregate_weight:
            chosen = np.sort(np.random.default_rng(seed).permutation(task.size())[:INITIAL_PAIRS])
            query_rows, answers = task.query_rows[chosen], task.document_rows[chosen]
            rows = np.unique(answers)
            module.eval()
            q = torch.from_numpy(task.encode("query", query_rows)[2])
            fields = torch.from_numpy(task.encode("document", rows)[0])
            fit_field_weights(module, q, fields, *task.targets(query_rows, answers, rows))
        return task

    def size(self) -> int:
        """Training pairs."""
        return len(self.query_rows)

    def stages(self, training: TrainingConfig) -> Sequence[Stage]:
        """One run of the loop; none without labelled pairs."""
        return super().stages(training) if self.size() else []

    def texts(self, kind: TextKind, rows: Rows) -> list[Any]:
        """Token ids of some documents or queries."""
        if kind == "query":
            return [self.queries.row(row).tolist() for row in rows]
        return [[tokens.row(row).tolist() for tokens in self.documents] for row in rows]

    def encode(self, kind: TextKind, rows: Rows) -> tuple[Floats, Floats, Floats]:
        """Fields' vectors, weights and aggregates of some documents or queries, without gradients."""
        if kind not in self.states:
            return self.module.encode(kind, self.texts(kind, rows))
        with torch.inference_mode():
            fields, weights, aggregate = self.module("pooled", self.states[kind][rows])
        return fields.cpu().numpy(), weights.cpu().numpy(), aggregate.cpu().numpy()

    def targets(self, queries: Rows, answers: Rows, documents: Rows) -> tuple[Tensor, Tensor]:
        """Place of each query's answer among sorted documents [B], and which of them answer it [B, M]."""
        known = self.data.positives_mask(queries, documents)
        return torch.from_numpy(np.searchsorted(documents, answers)), torch.from_numpy(known)

    def loss(self, module: nn.Module, rows: NDArray[np.int64], generator: torch.Generator, progress: float) -> Tensor:
        """Equation 6 on a batch of pairs, against its other documents and a hard negative (graded 0) per query."""
        # 1. The batch: pairs, and a hard negative of each query that has one.
        draw = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
        queries, answers = self.query_rows[rows], self.document_rows[rows]
        hard = self.data.negatives.sample(queries, 1, draw)
        documents = np.unique(np.concatenate([answers, hard[hard >= 0]]))  # [M], each once
        # 2. Their vectors: from the states of a frozen encoder, else by passes that keep the activations of one chunk.
        rows_of: dict[TextKind, Rows] = {"document": documents, "query": queries}
        encoded: list[Encoded] = []
        for kind, chosen in rows_of.items():
            if kind in self.states:
                encoded.append(Encoded(*module("pooled", self.states[kind][chosen])))
            else:
                texts = self.texts(kind, chosen)
                encoded.append(gradient_cached(module, kind, texts, self.module.config.chunk))
        (fields, _, aggregate), (_, _, q) = encoded
        # 3. The loss of each query at the place of its document, no known answer being a negative.
        target, known = (part.to(q.device) for part in self.targets(queries, answers, documents))
        with torch.autocast(q.device.type, enabled=False):  # similarities divided by τ want every digit
            return self.objective(self.module.config, q, fields, aggregate, target, known)

    def validate(self, module: nn.Module) -> dict[str, float]:
        """Retrieval quality on held-out queries: in two stages, by the aggregate, and by the best field."""
        if self.dev is None:
            return {}
        # Two stages as a search has them: the shortlist by the aggregate, ranked by both.
        by_aggregate, best, listed = self.similarities()
        two_stage = np.where(listed, BLEND * by_aggregate + (1 - BLEND) * best, -np.inf)
        tables = {"": two_stage, " by aggregate": by_aggregate, " by best field": best}
        judged = {name: self.dev.score_ranking(best_of_each(table, 10)) for name, table in tables.items()}
        return {key + name: value for name, scores in judged.items() for key, value in scores.items()}

    def similarities(self) -> tuple[Floats, Floats, Mask]:
        """Held-out queries by aggregate and by best field, and which documents are shortlisted: [Q, N] each."""
        assert self.dev is not None
        fields, _, aggregate = map(torch.from_numpy, self.encode("document", self.dev.documents))
        q = torch.from_numpy(self.encode("query", self.dev.queries)[2])
        by_aggregate = (q @ aggregate.T).numpy()  # [Q, N]
        best = best_field(torch.einsum("qd,nfd->fqn", q, fields), fields).numpy()  # [Q, N]
        place = -min(FieldsSearch().shortlist, by_aggregate.shape[1])
        return by_aggregate, best, by_aggregate >= np.partition(by_aggregate, place, axis=1)[:, [place]]

    def finish(self, result: TrainingResult) -> TrainingResult:
        """Choose the aggregate's share of a two-stage score: half, unless held-out queries clearly gain by another."""
        if self.dev is not None and self.size():
            (aggregate, best, listed), each = self.similarities(), dict[float, NDArray[np.float64]]()
            for share in BLENDS:
                table = np.where(listed, share * aggregate + (1 - share) * best, -np.inf)
                each[share] = self.dev.each(best_of_each(table, 10))
            share = max(each, key=lambda share: each[share].mean())
            # Another share than half needs a mean gain above its standard error.
            gain = each[share] - each[BLEND]
            clear = gain.mean() > gain.std() / len(gain) ** 0.5
            self.module.config = self.module.config.replace(blend=share if clear else BLEND)
        return result


def fit_field_weights(module: FieldEncoder, queries: Tensor, fields: Tensor, target: Tensor, known: Tensor) -> None:
    """Fit the bias of the fields' weights by L_Agg on some training pairs; the encoder stays as it is.

    Fields that tell little alone (a brand, a number) would else count as much in the first aggregates as whole
    documents, and a few hundred steps do not make good for that. Arguments as in :func:`losses.losses`.
    """
    filled = (fields != 0).any(-1)  # [M, F]
    bias = module.field_weights.bias.detach().cpu().clone().requires_grad_(True)
    optimizer = torch.optim.Adam([bias], lr=WEIGHT_RATE)
    lowest = torch.finfo(bias.dtype).min
    for _ in range(WEIGHT_STEPS):
        weights = bias.expand(len(fields), -1).masked_fill(~filled, lowest).softmax(-1)  # [M, F]
        logits = queries @ module.aggregate(fields, weights).T / module.config.temperature
        optimizer.zero_grad()
        torch.autograd.backward(info_nce(logits, target, known))
        optimizer.step()
    with torch.no_grad():
        module.field_weights.bias.copy_(bias)
