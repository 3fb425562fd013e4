"""A trainable copy of an encoder, for methods that train the transformer itself.

Its weights are part of the method's module and therefore of its checkpoint: four bytes a parameter, 90 MB for
all-MiniLM-L6-v2, 440 MB for a BERT base. ``Model.encoder`` stays the original encoder, and lends name, tokenizer
and architecture.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from palmette.config import check_range
from palmette.encoder.base import Encoder, Kind
from palmette.encoder.load import load_encoder
from palmette.encoder.local.sentence_transformer import FAMILIES, OFFSET_FAMILIES, SentenceEncoder, layer_body
from palmette.errors import ConfigError
from palmette.machine.progress import progress_bar

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

TEXTS_AT_ONCE_OUTSIDE_TRAINING = 32
"""Texts that a learning encoder reads at a time outside training."""


class Backbone(nn.Module):
    """A sentence-transformers encoder of the BERT family that learns, with any attention mask and new tokens.

    :meth:`embed` gives the same vectors as one pass of the encoder that it is a copy of: longer texts are cut.

    Attributes:
        width: Width of the hidden states, w.
        dimension: Width of pooled vectors, d; w unless the encoder ends in a projection.
        max_length: Tokens per text, those at both ends included.
        pooling: ``mean`` or ``cls``.
        cls, sep, pad: Ids of the token before every text, of the one after it, and of the padding.
        vocabulary: Number of tokens that the tokenizer knows; new ones count on from there.
        prompts: Text put before a query and before a document.
    """

    network: Any
    tokenizer: Any

    def __init__(self, model: SentenceTransformer, encoder: Encoder, new_tokens: int = 0) -> None:
        super().__init__()
        first, second, *rest = list(model)
        self.network = copy.deepcopy(first.auto_model).float().requires_grad_(True)
        self.network.pooler = None  # a head that no sentence vector goes through
        self.rest = nn.ModuleList(copy.deepcopy(module).float().requires_grad_(True) for module in rest)
        self.tokenizer = copy.deepcopy(model.tokenizer)  # only this class sets it, and always alike
        config = self.network.config
        self._attention = config._attn_implementation
        self.width, self.dimension = int(config.hidden_size), encoder.dimension
        self.max_length, self.prompts = encoder.max_length, dict(encoder.prompts)
        self.pooling = str(getattr(second, "pooling_mode", None))
        self.first_position = self.network.embeddings.padding_idx + 1 if config.model_type in OFFSET_FAMILIES else 0
        ends = self.tokenizer("")["input_ids"]
        if self.pooling not in ("mean", "cls") or len(ends) != 2:
            raise ConfigError(
                f"encoder {encoder.name!r} cannot be trained here: it pools by {self.pooling!r} and puts {len(ends)} "
                "tokens around a text; what is known is 'mean' and 'cls', and 2"
            )
        self.cls, self.sep = ends
        self.pad = self.tokenizer.pad_token_id
        words = self.network.get_input_embeddings().weight.detach()
        self.vocabulary = len(words)
        # A new token begins as the first one of every text, which the network reads as "no word".
        start = words[self.cls].repeat(new_tokens, 1)  # [new, w]
        self.new_tokens = nn.Parameter(start.clone()) if new_tokens else None

    @classmethod
    def of(cls, encoder: Encoder, *, new_tokens: int = 0, pretrained: bool = True) -> Self:
        """Copy a sentence-transformers model of the BERT family, with ``new_tokens`` more in its vocabulary.

        ``pretrained=False`` is for copies whose weights will be loaded: they may begin as rounded ones, which is faster
        where the encoder computes in half precision.
        """
        encoder = getattr(encoder, "encoder", encoder).with_torch()  # the one behind a cache
        family = encoder.family if isinstance(encoder, SentenceEncoder) else None
        if not isinstance(encoder, SentenceEncoder) or family not in FAMILIES:
            what = f"a transformer of type {family!r}" if family else "no such model"
            raise ConfigError(
                f"encoder {encoder.name!r} is {what}: this method trains sentence-transformers encoders of the types "
                f"{', '.join(FAMILIES)}"
            )
        if pretrained and encoder.precision != "float32":  # its weights are rounded
            exact = load_encoder(encoder.to_config(), device=encoder.device, dtype="float32")
            assert isinstance(exact, SentenceEncoder)
            encoder = exact
        with encoder.between_passes() as model:
            return cls(model, encoder, new_tokens)

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return next(self.parameters()).device

    @property
    def positions(self) -> int:
        """Number of positions that a token can have."""
        return int(self.network.config.max_position_embeddings) - self.first_position

    @property
    def layers(self) -> nn.ModuleList:
        """Layers after the embeddings."""
        layers: nn.ModuleList = layer_body(self.network).layer
        return layers

    def freeze(self, trained_layers: int | None) -> None:
        """Train only the last layers (and new tokens, and modules after the layers); ``None`` for everything."""
        count = len(self.layers)
        check_range("Backbone", "trained_layers", trained_layers, 0, count)
        if trained_layers is not None:
            self.network.requires_grad_(False)
            for layer in self.layers[count - trained_layers :]:
                layer.requires_grad_(True)

    # -- texts → token ids ----------------------------------------------------------------------------------

    def tokenise(self, texts: Sequence[str], limit: int | None = None) -> list[list[int]]:
        """Return each text's token ids, without those at both ends, at most ``limit``."""
        if not texts:
            return []
        room = self.max_length - 2 if limit is None else limit
        encoded = self.tokenizer(list(texts), add_special_tokens=False, verbose=False)
        return [row[:room] for row in encoded["input_ids"]]

    def plain(self, texts: Sequence[str], kind: Kind = "document") -> tuple[Tensor, Tensor]:
        """Tokenise texts as the encoder does: padded ids [B, T], and where there is a token [B, T]."""
        prompt = self.prompts.get(kind, "")
        rows = [[self.cls, *ids, self.sep] for ids in self.tokenise([prompt + text for text in texts])]
        parts = [torch.tensor(row, dtype=torch.long) for row in rows]
        ids = nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=self.pad)  # [B, T]
        mask = torch.arange(ids.shape[1]) < torch.tensor([*map(len, rows)])[:, None]
        return ids.to(self.device), mask.to(self.device)

    # -- token ids → states ---------------------------------------------------------------------------------

    def words(self, ids: Tensor) -> Tensor:
        """Embed tokens [B, T], new ones included: [B, T, w]."""
        known = self.network.get_input_embeddings()(ids.clamp(max=self.vocabulary - 1))
        if self.new_tokens is None:
            return torch.as_tensor(known)
        new = F.embedding((ids - self.vocabulary).clamp(min=0), self.new_tokens)  # [B, T, w]
        return torch.where((ids >= self.vocabulary)[..., None], new.to(known.dtype), known)

    def forward(self, ids: Tensor, mask: Tensor, positions: Tensor | None = None) -> Tensor:
        """Compute the last hidden states [B, T, w].

        Args:
            ids: [B, T] tokens; those from ``vocabulary`` on are the new ones.
            mask: True where there is a token [B, T], or where one may attend to another [B, 1, T, T].
            positions: [B, T] counted from 0; by default the tokens' order.
        """
        embedded, config = self.words(ids), self.network.config
        # On a CPU, torch's fused attention takes its gradient in bfloat16 four times as long as in float32.
        half = torch.is_grad_enabled() and ids.device.type == "cpu" and torch.is_autocast_enabled("cpu")
        config._attn_implementation = "eager" if half else self._attention
        if mask.ndim == 2:
            mask = mask[:, None, None, :].expand(-1, 1, ids.shape[1], -1)  # [B, 1, T, T]
        if config._attn_implementation == "eager":  # adds the mask to the scores
            zeros = torch.zeros(mask.shape, dtype=embedded.dtype, device=mask.device)
            mask = zeros.masked_fill(~mask, torch.finfo(embedded.dtype).min)
        if positions is None:
            positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        elif config.model_type == "mpnet":  # whose bias by distance takes tokens' order for their places
            body = self.network.encoder
            far = positions[:, None, :] - positions[:, :, None]  # [B, T, T]
            bias = body.relative_attention_bias(body.relative_position_bucket(far)).permute(0, 3, 1, 2)
            mask = mask + bias - body.compute_position_bias(embedded)  # [B, H, T, T]
        places: dict[str, Any] = {"attention_mask": mask, "position_ids": positions + self.first_position}
        states: Tensor = self.network(inputs_embeds=embedded, return_dict=True, **places).last_hidden_state
        return states

    def pool(self, states: Tensor, mask: Tensor) -> Tensor:
        """Pool states [B, T, w] of tokens [B, T] as the encoder does: [B, d]."""
        if self.pooling == "cls":
            return self.finish(states[:, 0])
        share = mask.to(states.dtype)
        mean = (states * share[..., None]).sum(1) / share.sum(1, keepdim=True).clamp(min=1e-9)  # [B, w]
        return self.finish(mean)

    def finish(self, pooled: Tensor) -> Tensor:
        """Apply the modules after pooling (projections, unit length): [B, w] → [B, d]."""
        for module in self.rest:
            pooled = module({"sentence_embedding": pooled})["sentence_embedding"]
        return pooled

    def embed(self, texts: Sequence[str], kind: Kind = "document") -> Tensor:
        """Make sentence vectors [B, d] of one batch as the encoder does; gradients flow where they are on."""
        ids, mask = self.plain(texts, kind)
        return self.pool(self(ids, mask), mask)


def set_dropout(network: nn.Module, share: float) -> None:
    """Set the dropout of hidden values, and none of attention weights, which would rule out fused attention."""
    for name, part in network.named_modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0 if "attention" in name and "output" not in name else share


@torch.no_grad()
def encode_texts(backbone: Backbone, texts: Sequence[str], kind: Kind, progress: bool | None = None) -> Tensor:
    """Embeddings [n, m] of texts, those of like lengths together."""
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
    out = torch.zeros(len(texts), backbone.dimension, device=backbone.device)
    learning = backbone.training
    backbone.eval()
    shown = progress if len(texts) > 1000 else False
    for start in progress_bar(
        shown, range(0, len(order), TEXTS_AT_ONCE_OUTSIDE_TRAINING), desc="Encoding", unit="batch", leave=False
    ):
        rows = order[start : start + TEXTS_AT_ONCE_OUTSIDE_TRAINING]
        out[torch.tensor(rows)] = backbone.embed([texts[row] for row in rows], kind)
    backbone.train(learning)
    return out
