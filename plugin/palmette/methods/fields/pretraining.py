"""Masked language modelling on the catalogue, before anything is retrieved: the encoder learns how it is written."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from palmette.errors import ConfigError
from palmette.methods.fields.layout import Batch
from palmette.methods.fields.module import FieldEncoder
from palmette.methods.fields.task import FieldsTask

__all__ = ["LanguageModel", "LanguageTask", "hidden_words"]

SHARE = 0.15
"""Of the words that are to be guessed."""


class LanguageModel(nn.Module):
    """The encoder of fields with a head that guesses words, its last map being the word embeddings."""

    transformer_learns = True

    def __init__(self, encoder: FieldEncoder) -> None:
        super().__init__()
        words = encoder.backbone.network.get_input_embeddings().weight
        self.encoder = encoder
        self.dense = nn.Linear(encoder.backbone.width, words.shape[1])
        self.norm = nn.LayerNorm(words.shape[1])
        self.bias = nn.Parameter(torch.zeros(len(words)))

    def forward(self, batch: Batch, asked: Tensor) -> Tensor:
        """Scores of all words [n, V] where something is ``asked`` [B, T], n times."""
        states = self.encoder.states(batch)[asked]  # [n, w]
        words = self.encoder.backbone.network.get_input_embeddings().weight
        return F.linear(self.norm(F.gelu(self.dense(states))), words, self.bias)


def hidden_words(
    batch: Batch, fields: int, mask: int, vocabulary: int, generator: torch.Generator
) -> tuple[Batch, Tensor]:
    """Hide words of documents: 15 % are to be guessed, most behind the mask, some behind others, some as they are.

    Returns:
        The changed sequences, and which words [B, T] were chosen.
    """
    chosen = (torch.rand(batch.ids.shape, generator=generator) < SHARE) & (batch.codes < fields)
    how = torch.rand(batch.ids.shape, generator=generator)
    ids = batch.ids.masked_fill(chosen & (how < 0.8), mask)
    others = torch.randint(vocabulary, batch.ids.shape, generator=generator)
    ids = torch.where(chosen & (how >= 0.9), others, ids)
    return batch._replace(ids=ids), chosen


@dataclass
class LanguageTask:
    """Guess the hidden words of documents, laid out as they will be for retrieval."""

    module: LanguageModel
    fields: FieldsTask

    def __post_init__(self) -> None:
        if self.module.encoder.backbone.mask is None:
            raise ConfigError(
                "pretrain_steps needs an encoder whose tokenizer has a mask token; this one has none"
            )

    @property
    def metric(self) -> str:
        """Nothing is held out: the last weights are kept."""
        return "loss"

    def size(self) -> int:
        """Documents."""
        return len(self.fields.data.corpus)

    def to(self, device: torch.device) -> None:
        """Token ids stay where they are."""

    def loss(
        self, module: nn.Module, rows: NDArray[np.int64], generator: torch.Generator, progress: float
    ) -> Tensor:
        """Cross entropy over the hidden words."""
        encoder, device = self.module.encoder, self.module.bias.device
        backbone, layout = encoder.backbone, encoder.layout
        batch = layout.documents(self.fields.fields_of(rows), encoder.ends, backbone.vocabulary)
        changed, chosen = hidden_words(batch, layout.fields, backbone.mask, backbone.vocabulary, generator)
        logits = module(changed, chosen.to(device))
        return F.cross_entropy(logits.float(), batch.ids[chosen].to(device), reduction="sum") / max(
            1, int(chosen.sum())
        )

    def validate(self, module: nn.Module) -> dict[str, float]:
        """Nothing is held out."""
        return {}
