"""Where training begins: fields count in the aggregate as much as they help, before anything else is learned."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from palmette.methods.fields.losses import contrast
from palmette.methods.fields.module import aggregated
from palmette.methods.fields.passes import encoded_documents, encoded_queries

if TYPE_CHECKING:
    from palmette.methods.fields.task import FieldsTask

__all__ = ["begin"]

PAIRS, STEPS, RATE = 256, 40, 0.1  # far enough to tell fields apart, not to silence any


def begin(task: FieldsTask, seed: int) -> None:
    """Fit the bias of the fields' weights by L_agg on some training pairs; the encoder stays as it is.

    Fields that tell little alone (a brand, a number) would otherwise count as much in the first aggregates as whole
    documents, and a few hundred steps do not make good for that.
    """
    module = task.module
    if module.layout.fields == 1 or not module.config.aggregate_weight or task.teacher is not None:
        return
    chosen = np.sort(np.random.default_rng(seed).permutation(task.size())[:PAIRS])
    queries, answers = task.query_rows[chosen], task.document_rows[chosen]
    rows = np.unique(answers)
    learning = module.training
    module.eval()
    made = encoded_documents(module, task.fields_of(rows))
    asked = encoded_queries(module, [task.queries[row] for row in queries.tolist()])
    module.train(learning)
    fields, q = torch.from_numpy(made.fields), torch.from_numpy(asked)  # [M, F, d], [B, d]
    there = (fields != 0).any(-1)  # [M, F]
    target = torch.from_numpy(np.searchsorted(rows, answers))
    known = torch.from_numpy(task.known(queries, rows))
    bias = module.weigh.bias.detach().cpu().clone().requires_grad_(True)
    optimizer = torch.optim.Adam([bias], lr=RATE)
    lowest = torch.finfo(bias.dtype).min
    for _ in range(STEPS):
        weights = bias.expand(len(fields), -1).masked_fill(~there, lowest).softmax(-1)  # [M, F]
        aggregate = aggregated(fields, weights, unit=module.unit)
        loss = contrast(q @ aggregate.T / module.config.temperature, target, known).mean()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    with torch.no_grad():
        module.weigh.bias.copy_(bias)
