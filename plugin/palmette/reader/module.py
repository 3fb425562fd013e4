"""The network: an encoder that reads question and passage together, and three numbers per token and window."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from palmette.encoder.attention import learning_attention, set_dropout
from palmette.encoder.backbone import Backbone
from palmette.errors import ConfigError
from palmette.reader.config import ReaderConfig
from palmette.reader.prior import Prior
from palmette.reader.scores import span_scores
from palmette.reader.windows import Batch

__all__ = ["SpanModule"]


class SpanModule(nn.Module):
    """A transformer over pairs, with a score for every token to begin and to end an answer, and one for the window.

    Args:
        config: Which layers learn, and how long an answer may be.
        backbone: The encoder, whose transformer is taken.
    """

    def __init__(self, config: ReaderConfig, backbone: Backbone) -> None:
        super().__init__()
        backbone.freeze(config.trained_layers)
        self.config = config
        self.body: Any = backbone.network
        own = self.body.config
        positions = getattr(own, "max_position_embeddings", config.max_length) - backbone.first_position
        if config.max_length > positions:
            raise ConfigError(
                f"reader: max_length={config.max_length}, but the encoder has {positions} positions"
            )
        self.typed = getattr(own, "type_vocab_size", 1) > 1
        set_dropout(self.body, config.dropout)
        self.edges = nn.Linear(backbone.width, 2)
        self.relevance = nn.Linear(backbone.width, 1)
        for head in (self.edges, self.relevance):
            nn.init.normal_(head.weight, std=0.02)
            nn.init.zeros_(head.bias)
        for name, parameter in self.body.named_parameters():
            if "word_embeddings" in name or "position_embeddings" in name:
                parameter.requires_grad_(False)
        self.prior = Prior()
        self.learned = [
            name
            for name, parameter in self.named_parameters()
            if parameter.requires_grad or name.startswith("prior.")
        ]
        """The names of the weights that differ from the encoder's: those a checkpoint keeps."""

    transformer_learns = True

    def forward(self, batch: Batch) -> Tensor:
        """[W, T, L]: the scores of all spans, see :mod:`palmette.reader.scores`."""
        types = {"token_type_ids": batch.types} if self.typed else {}
        with learning_attention():
            read = self.body(input_ids=batch.ids, attention_mask=batch.mask, **types)
        hidden = read.last_hidden_state  # [W, T, w]
        with torch.autocast(hidden.device.type, enabled=False):
            edges = self.edges(hidden.float())  # [W, T, 2]
            relevance = self.relevance(hidden[:, 0].float()).squeeze(1)  # [W]
        starts, ends = edges.unbind(-1)
        return span_scores(starts, ends, relevance, batch.starts, batch.ends, self.config.max_answer)

    def kept(self) -> dict[str, Tensor]:
        """The weights that a checkpoint keeps."""
        state = self.state_dict()
        return {name: state[name] for name in self.learned}

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.edges.weight.device
